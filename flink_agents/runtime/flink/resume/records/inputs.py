"""Bounded inputs of a job run: a resumed job must read the same inputs as before."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flink_agents.api.errors import InputChangedError, SourceNotResumableError, UnserializableValueError
from flink_agents.runtime.flink.resume.records.job_run import BoundedInput, JobRun
from flink_agents.runtime.serde.canonical import DIGEST_BYTES, digest_of
from flink_agents.runtime.serde.codec import ValueCodec


@dataclass(frozen=True)
class GivenList:
    """A list that a job reads.

    Attributes:
        records: Its records.
        place: Its place in the user's code.
    """

    records: Sequence[Any]
    place: str | None = None


@dataclass(frozen=True)
class GivenInputs:
    """The inputs of a job that matter when it resumes.

    Attributes:
        lists: Length and digest of each list, by its name.
        places: The place of each list in the user's code.
        restarting: Names of sources that start over at each start.
    """

    lists: Mapping[str, BoundedInput]
    places: Mapping[str, str | None]
    restarting: tuple[str, ...] = ()


def no_inputs() -> GivenInputs:
    """Return an object for unknown inputs."""
    return GivenInputs({}, {})


def given_inputs(lists: Iterable[GivenList], restarting: Iterable[str]) -> GivenInputs:
    """Return the inputs of a job.

    Args:
        lists: Its lists, in the order in which they were passed.
        restarting: Names of sources that start over at each start.
    """
    named = {f"list {number}": given_list for number, given_list in enumerate(lists, 1)}
    return GivenInputs(
        {name: as_recorded(given_list.records) for name, given_list in named.items()},
        {name: given_list.place for name, given_list in named.items()},
        tuple(restarting),
    )


def as_recorded(records: Sequence[Any]) -> BoundedInput:
    """Return length and digest of records. The digest is the same in each process."""
    codec = ValueCodec(allow_pickle=False)
    whole = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for record in records:
        try:
            whole.update(digest_of(codec, record))
        except UnserializableValueError:
            # The bytes of its pickle may differ in another process, although it is equal.
            cls = type(record)
            whole.update(f"{cls.__module__}:{cls.__qualname__}".encode())
    return BoundedInput(len(records), whole.hexdigest())


def check_lists(run: JobRun, inputs: GivenInputs) -> None:
    """Check that each list is the same as when the job run started.

    Raises:
        InputChangedError: A list differs.
    """
    for name, previous_input in run.inputs.items():
        present = inputs.lists.get(name)
        if present == previous_input:
            continue
        raise InputChangedError(
            f"{name} of the job {run.name!r} differs from the one that the job run started with",
            expected=f"the {previous_input.length} records that from_list got then",
            found=_describe_difference(previous_input, present),
            fix="pass the same list until the job run has finished, or start over with --fresh. For later "
            "records, use a source that grows, for example a Kafka topic",
            where=inputs.places.get(name),
        )


def _describe_difference(previous_input: BoundedInput, present: BoundedInput | None) -> str:
    if present is None:
        return "the job no longer has this list"
    if present.length != previous_input.length:
        return f"{present.length} records"
    return f"{present.length} records, of which some differ"


def restarting_sources(run: JobRun, inputs: GivenInputs, has_finished: bool) -> str | None:
    """Return a warning if a source of a resuming job may start over.

    Args:
        run: The job run, which resumes from a checkpoint.
        inputs: Its inputs.
        has_finished: True if an operator had finished when the checkpoint was taken: maybe the source.

    Raises:
        SourceNotResumableError: A source starts over.
    """
    if not inputs.restarting:
        return None
    names = ", ".join(f"{name!r}" for name in inputs.restarting)
    if has_finished:
        return f"the source {names} starts over if it had not been read to its end"
    raise SourceNotResumableError(
        f"the source {names} of the job {run.name!r} cannot resume: it would read all records again",
        expected="sources that continue from the checkpoint",
        found=f"{names}, which keeps no position",
        fix="use env.from_list(...) instead of from_collection, or a source of Kafka or of files, and start "
        "over with --fresh",
    )


def warning_of(inputs: GivenInputs) -> str | None:
    """Return a warning about sources that start over, before the job runs for the first time."""
    if not inputs.restarting:
        return None
    names = ", ".join(f"{name!r}" for name in inputs.restarting)
    return (
        f"the source {names} keeps no position: if the process dies while it is read, the job cannot resume "
        "(use env.from_list(...) instead of from_collection)"
    )
