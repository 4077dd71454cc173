"""Makes classes of the user's ``__main__`` known to the workers.

``python my_job.py`` defines its classes in a module that workers do not have. cloudpickle
ships such classes by value, but PyFlink moves records with plain pickle, which looks classes
up by name. A :class:`MainModule` inside a shipped function puts the classes where that look-up
finds them, as soon as the function is unpickled and so before its first record.

All jobs of a worker share one module ``__main__``, and pickle and state find a class by its name. So a worker
has one class per name at a time: the class of the latest job. Jobs that run at the same time have to agree on
it. If their scripts have the same class, as two jobs of one script do, the later job gets the class of the
earlier one; if they differ, the later job is rejected.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle
from cloudpickle import cloudpickle as by_value

from flink_agents.api.agents.agent import Agent
from flink_agents.api.context import RunnerContext
from flink_agents.api.durable.upgrades import all_upgrades, replace_upgrade
from flink_agents.api.errors import StaleCodeError
from flink_agents.runtime.flink import compat as flink_compat
from flink_agents.runtime.flink.launch.gateway import refuse_in_worker
from flink_agents.runtime.flink.launch.jvm import in_flink_worker
from flink_agents.runtime.flink.shipping import (
    class_copies,  # noqa: F401  # pyright: ignore[reportUnusedImport]  corrects cloudpickle
    code_digest,
    user_modules,
)
from flink_agents.runtime.flink.shipping.code_digest import CodeCheck
from flink_agents.runtime.flink.shipping.code_objects import digest_code
from flink_agents.runtime.flink.shipping.user_modules import MAIN, Use


class MainModule:
    """The classes of ``__main__``: unpickling this object installs them in the worker."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        classes = _shipped_classes()
        return (_unpickle_main, (classes, _shipped_upgrades()))


def _shipped_classes() -> dict[str, MainClass]:
    shipped: dict[str, MainClass] = {}
    for name, value in classes_of(sys.modules[MAIN]).items():
        try:
            shipped[name] = MainClass.from_class(value)
        except Exception:
            continue
    return shipped


def _shipped_upgrades() -> dict[str, bytes]:
    """Return the user's upgrade functions: of the main script by value, of other modules by name."""
    shipped: dict[str, bytes] = {}
    for name, upgrade in all_upgrades().items():
        with suppress(Exception):
            shipped[name] = cloudpickle.dumps(upgrade)
    return shipped


def _unpickle_main(classes: dict[str, MainClass], upgrades: dict[str, bytes] | None = None) -> MainModule:
    if in_flink_worker():
        _prepare_worker()
        install_classes(sys.modules[MAIN], classes)
        for name, upgrade in (upgrades or {}).items():
            # If the worker lacks a module, the code that needs it fails, and names it.
            with suppress(Exception):
                replace_upgrade(name, cloudpickle.loads(upgrade))
    return MainModule()


class ShippedFunction:
    """A function that brings the user's ``__main__`` classes to the worker with it.

    Args:
        function: The function, of one argument.
        uses: Functions and classes of the user inside it, whose modules are compared on the worker.
    """

    def __init__(self, function: Callable[[Any], Any], uses: Iterable[Any] = ()) -> None:
        # Unpickled in this order: the function may need the first two.
        self.code_check = CodeCheck.of_values(uses)
        self.main = MainModule()
        self.function = function

    def __call__(self, value: Any) -> Any:
        """Call the function."""
        return self.function(value)


def _prepare_worker() -> None:
    """Make each operator that is loaded from now on find the modules of its job, and start no JVM."""
    refuse_in_worker()
    flink_compat.watch_operators(_unpickle_operator, _note_loaded)


def _unpickle_operator(
    job_id: str, job_name: str, payload: bytes, announced: str | None
) -> tuple[set[str] | None, str | None]:
    names = code_digest.operator_arrives(job_id, job_name, payload)
    if announced:
        expect_classes(sys.modules[MAIN], announced)
    return names, announced


def _note_loaded(arrived: tuple[set[str] | None, str | None] | None) -> None:
    names, announced = arrived or (None, None)
    code_digest.operator_loaded(names)
    if announced:
        install_late(sys.modules[MAIN], announced)


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


@dataclass(frozen=True)
class MainClass:
    """A class of a main script.

    Attributes:
        pickled: The class by value.
        digest: Equal for equal classes.
        tracker: The name by which cloudpickle identifies it.
    """

    pickled: bytes
    digest: bytes
    tracker: str

    @classmethod
    def from_class(cls, value: type) -> MainClass:
        """Return a class in a form that can be shipped.

        Raises:
            Exception: It cannot be pickled.
        """
        return cls(cloudpickle.dumps(value), class_digest(value), by_value._get_or_create_tracker_id(value))


def class_digest(value: type) -> bytes:
    """Return the digest of a class, from its bases, fields, functions and plain values."""
    text = "\n".join(sorted(_class_parts(value)))
    return blake2b(_ADDRESS.sub("", text).encode("utf-8", "backslashreplace"), digest_size=8).digest()


def _class_parts(value: type) -> Iterator[str]:
    yield f"bases {[f'{base.__module__}:{base.__qualname__}' for base in value.__mro__[1:]]}"
    annotations = vars(value).get("__annotations__", {})
    yield f"annotations {sorted((name, repr(kind)) for name, kind in annotations.items())}"
    for fields in ("__pydantic_fields__", "__dataclass_fields__", "_fields", "_field_defaults"):
        yield f"{fields} {vars(value).get(fields)!r}"
    if issubclass(value, Enum):
        yield f"members {[(name, repr(member.value)) for name, member in value.__members__.items()]}"
    for name, attribute in list(vars(value).items()):
        function = getattr(attribute, "__func__", getattr(attribute, "fget", attribute))
        if isinstance(function, FunctionType):
            yield f"{name} {digest_code(function.__code__).hex()} {function.__defaults__!r}"
        elif isinstance(attribute, _PLAIN) and not isinstance(attribute, Enum) and name != "__firstlineno__":
            yield f"{name} {attribute!r}"


def announcement(module: ModuleType) -> str | None:
    """Return the argument of :func:`expect_classes` for the workers; None if a main script has no classes."""
    announced_classes: dict[str, tuple[str, str]] = {}
    for name, value in classes_of(module).items():
        try:
            announced_classes[name] = (by_value._get_or_create_tracker_id(value), class_digest(value).hex())
        except Exception:
            # A part of the class has no representation; MainModule leaves it out as well.
            continue
    return json.dumps(announced_classes) if announced_classes else None


def classes_of(module: ModuleType) -> dict[str, type]:
    """Return the classes that a main script defines. Another task may bind names in the module meanwhile."""
    return {
        name: value
        for name, value in list(vars(module).items())
        if isinstance(value, type) and value.__module__ == MAIN
    }


# -- on the worker ------------------------------------------------------------------------

_installed: dict[str, tuple[type, bytes]] = {}
"""The class of each name in the module ``__main__``, with its digest."""


def install_classes(module: ModuleType, classes: Mapping[str, MainClass]) -> None:
    """Put the classes of a job into the worker's ``__main__``.

    Raises:
        StaleCodeError: A running job has another class of that name.
    """
    with code_digest.renewal_lock:
        use = user_modules.current_use()
        for name, main_class in classes.items():
            _share_class(module, name, main_class.digest, main_class.tracker, use)
        use.add_modules(f"{MAIN}:{name}" for name in classes)
        replaced = [_install_class(module, name, shipped_class) for name, shipped_class in classes.items()]
        if any(replaced):
            user_modules.forget_classes()


def expect_classes(module: ModuleType, announced: str) -> None:
    """Give a job the classes that it shares with other jobs, before any of its operators brings its own.

    PyFlink's own functions also bring classes by value, and may be the first of a job to arrive.

    Args:
        module: The worker's ``__main__``.
        announced: The driver's :func:`announcement`.

    Raises:
        StaleCodeError: A running job has another class of that name.
    """
    with code_digest.renewal_lock:
        use = user_modules.current_use()
        for name, (tracker, digest_of) in json.loads(announced).items():
            _share_class(module, name, bytes.fromhex(digest_of), tracker, use)


def install_late(module: ModuleType, announced: str) -> None:
    """Put classes that an operator has brought into ``__main__``, if no other job has one with that name.

    A PyFlink function may get its first record before an operator arrives that installs them.

    Args:
        module: The worker's ``__main__``.
        announced: The argument of :func:`expect_classes`.
    """
    with code_digest.renewal_lock:
        use = user_modules.current_use()
        for name, (tracker, digest_of) in json.loads(announced).items():
            tracked_class: Any = by_value._DYNAMIC_CLASS_TRACKER_BY_ID.get(tracker)
            previous_class = getattr(module, name, None)
            if tracked_class is None or (tracked_class is not previous_class and _users_of(name, use)):
                continue
            use.add_modules([f"{MAIN}:{name}"])
            setattr(module, name, tracked_class)
            _installed[name] = (tracked_class, bytes.fromhex(digest_of))
            if previous_class is not None and previous_class is not tracked_class:
                user_modules.forget_classes()


def _share_class(module: ModuleType, name: str, wanted: bytes, tracker: str, use: Use) -> None:
    """Replace a class that the job has by value with the class that another job has in ``__main__``."""
    installation = _installed.get(name)
    if installation is None or getattr(module, name, None) is not installation[0]:
        return
    users = _users_of(name, use)
    if not users:
        return
    if installation[1] == wanted:
        if by_value._lookup_class_or_track(tracker, installation[0]) is not installation[0]:
            # It arrived earlier. Everything loaded from now on, in this attempt or the next, gets the right
            # one.
            by_value._DYNAMIC_CLASS_TRACKER_BY_ID[tracker] = installation[0]
            if any(
                other_use is not use and other_use.job_id == use.job_id
                for other_use in user_modules.living_uses()
            ):
                raise _late_class_error(name, users)
    elif not issubclass(installation[0], Agent | RunnerContext):
        raise _other_class_error(name, users)


def _install_class(module: ModuleType, name: str, shipped_class: MainClass) -> bool:
    new_class = cloudpickle.loads(shipped_class.pickled)
    previous_class = getattr(module, name, None)
    setattr(module, name, new_class)
    _installed[name] = (new_class, shipped_class.digest)
    return previous_class is not None and previous_class is not new_class


def _users_of(name: str, use: Use) -> list[Use]:
    mine = f"{MAIN}:{name}"
    return [
        other_use
        for other_use in user_modules.living_uses()
        if other_use is not use and other_use.job_id != use.job_id and mine in (other_use.modules or ())
    ]


def _late_class_error(name: str, users: list[Use]) -> StaleCodeError:
    jobs = ", ".join(sorted({use.job for use in users}))
    return StaleCodeError(
        f"operators of this job brought their own class {name}, which another job has, too",
        expected=f"one class {MAIN}.{name} for all jobs of the process: records and state use this name",
        found=f"the class of the job {jobs}, which arrived while this job was being loaded",
        fix="let Flink restart the job, or start it again: its next attempt has the class of the other job",
    )


def _other_class_error(name: str, users: list[Use]) -> StaleCodeError:
    jobs = ", ".join(sorted({use.job for use in users}))
    return StaleCodeError(
        f"another job in this process has another class {name} in its main script",
        expected=f"one class {MAIN}.{name} for all jobs of the process: records and state use this name",
        found=f"the class of the job {jobs}",
        fix="stop that job first, or move the class to a module, or rename it, or use separate "
        "TaskManagers for the two jobs",
    )


def unchanged(record: Any) -> Any:
    """Return the record: a map with this function only changes the type of a stream."""
    return record
