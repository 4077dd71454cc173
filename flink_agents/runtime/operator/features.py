"""The features of an operator that it calls by name, and the part of each that it calls.

A feature that an agent does not use is None, and costs a comparison. What several features share is a *hook*:
a tuple of bound methods, in the order of the services. It is empty if no service implements it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.loop.actor import KeyActor
from flink_agents.runtime.loop.entries import RunEnd
from flink_agents.runtime.operator.emission import Emission
from flink_agents.runtime.state.keyed_state import Head, Keys, Timers


class Hooked(Protocol):
    """The part of a service that this module uses."""

    receives: type | None
    receive: Callable[..., Any]


class Hooks:
    """The hooks of one operator. Only for Flink's task thread.

    Args:
        services: The services, in the order in which they are called.
        base: Their base class: a method that a service inherits from it is not called.

    Attributes:
        services: The services.
        receivers: Methods for records that are not inputs, by their type.
    """

    restored: tuple[Callable[..., bool], ...]
    blocked: tuple[Callable[..., None], ...]
    fired: tuple[Callable[..., None], ...]

    def __init__(self, services: Iterable[Hooked], base: type) -> None:
        self.services = tuple(services)
        self.receivers: dict[type, Callable[..., Any]] = {
            service.receives: service.receive for service in self.services if service.receives is not None
        }
        for name in HOOKS:
            hooks = [getattr(service, name) for service in self.services]
            inherited = getattr(base, name)
            own_hooks = (hook for hook in hooks if hook.__func__ is not inherited)
            setattr(self, name, tuple(own_hooks))


HOOKS = tuple(Hooks.__annotations__)
"""The names of the hooks, as ``KeyService`` documents them."""


class Suspensions(Protocol):
    """Suspends and resumes runs. Called only for keys that have suspended runs, or signals."""

    def blocks(self, head: Head) -> bool:
        """Return True if the inputs of a key without an actor wait for its suspended runs."""
        ...

    def rests(self, head: Head, key_text: str) -> bool:
        """Return True if nothing of a restored key may run before its suspended runs are woken."""
        ...

    def wake_first(self, head: Head, key_text: str) -> None:
        """Wake runs of a key that is about to get an actor."""

    def equip(self, actor: KeyActor) -> None:
        """Give an actor the signals of its key."""

    def take_over(self, ended: RunEnd, actor: KeyActor, timers: Timers, out: Emission) -> None:
        """List a run that was suspended, or remove one that has finished, and the signals that it took."""

    def continue_key(self, actor: KeyActor, was_suspended: bool, timers: Timers) -> None:
        """Release an actor whose last run was suspended, and resume what can run."""


class DelayedSends(Protocol):
    """Keeps events with a delay in state."""

    def keep_delayed(self, run: Run, head: Head, timers: Timers) -> None:
        """Move the events with a delay from the side outputs of a run to state; the head is written later."""


class EndRequests(Protocol):
    """Ends runs that users want to end."""

    def note_end(self, run: Run, actor: KeyActor) -> None:
        """Note the commit of a run whose key has runs that a user wants to end."""


class EventTimeFeature(Protocol):
    """Holds the low watermark, and gives outputs their timestamps."""

    def check_arrival(self, timestamp: int | None, timers: Timers) -> None:
        """Reject an input whose timestamp no stream downstream could have: it fails the job."""

    def note_stored(self, key_text: str, number: int, timestamp: int | None) -> None:
        """Note that an input was queued in state."""

    def note_restored_inputs(self, head: Head | None, key_text: str) -> None:
        """Note that the inputs of a restored key are known; ``head`` is None if none of them waits now."""

    def stamp_outputs(self, ended: RunEnd, out: Emission) -> None:
        """Set the timestamps of the outputs of a run that are about to be emitted."""


class WorkCheck(Protocol):
    """Checks if the present code can continue the work in restored state."""

    def unchecked(self, keys: Keys, waiting: Sequence[Any]) -> Iterable[Any]:
        """Return the restored keys to check."""
        ...

    def check(self, head: Head, key_text: str) -> None:
        """Check the current key."""


class SkippedRuns(Protocol):
    """Keeps track of recorded runs whose inputs did not come in time."""

    def give_up_late(self, head: Head, key_text: str) -> None:
        """Give up runs that have waited for too long, of a key that is about to get an actor."""

    def note_skipped(self, actor: KeyActor, seq: int, skips: tuple[int, ...]) -> None:
        """Note that a run ended before others that were recorded earlier, or was skipped itself before."""


class IdleKeys(Protocol):
    """Removes heads of keys without work."""

    def note_work(self, actor: KeyActor) -> None:
        """Note that a key has inputs again."""

    def note_idle(self, head: Head, timers: Timers) -> None:
        """Note in a head that is about to be written if all inputs of the key are committed."""


class PruningMarks(Protocol):
    """Keeps marks of the keys whose records must be pruned. May change Flink's current key."""

    def mark(self, head: Head, key_text: str, runs: int, marker: bytes | None) -> None:
        """Mark the current key, whose head was written.

        Args:
            head: The head.
            key_text: The key.
            runs: The number of runs with records that were committed since the last time.
            marker: The position before their records; None if it is unknown.
        """

    def clear_marks(self) -> None:
        """Remove the marks of keys whose committed runs are all pruned."""

    def report_restored(self) -> None:
        """Report some of the restored keys to the pruner."""

    @property
    def has_unreported(self) -> bool:
        """True if some of the restored keys were not reported yet."""
        ...


@dataclass(frozen=True, kw_only=True)
class Features:
    """The features of one operator.

    Attributes:
        hooks: What several of them share.
        suspensions: Suspends and resumes runs.
        delayed: Keeps events with a delay in state.
        end_requests: Ends runs that users want to end.
        event_time: Holds the low watermark; None if outputs need no timestamps.
        work_check: Checks the work in restored state; None if nothing of it could fail the job.
        skipped_runs: Keeps track of late replays; None without a store.
        idle_keys: Removes heads of idle keys; None if they stay.
        pruning_marks: Marks keys with records; None if records are not pruned.
    """

    hooks: Hooks
    suspensions: Suspensions
    delayed: DelayedSends
    end_requests: EndRequests
    event_time: EventTimeFeature | None
    work_check: WorkCheck | None
    skipped_runs: SkippedRuns | None
    idle_keys: IdleKeys | None
    pruning_marks: PruningMarks | None
