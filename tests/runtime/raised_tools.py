"""Exceptions of all kinds that user code can raise, and the function that raises them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn


class OwnBase(BaseException):
    """As those of pyo3 and of pytest, which are no ``Exception``."""


class BrokenText(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class TextStops(Exception):
    def __str__(self) -> str:
        raise StopIteration

    __repr__ = __str__


class TextInterrupts(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


class TextIsNone(Exception):
    def __str__(self) -> Any:
        return None


class Unpicklable(Exception):
    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot be pickled")


class OddConstructor(Exception):
    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(f"{code} because of {why}")
        self.code = code


class WithoutAttributes(Exception):
    def __getattribute__(self, name: str) -> Any:
        if name == "retry_after":
            raise OwnBase("retry_after")
        return super().__getattribute__(name)


class Stops(StopIteration):
    pass


class Exits(SystemExit):
    pass


def recursion() -> None:
    recursion()


KINDS: dict[str, Callable[[], BaseException]] = {
    "StopIteration": lambda: StopIteration(3),
    "subclass of StopIteration": lambda: Stops("own"),
    "StopAsyncIteration": lambda: StopAsyncIteration("end"),
    "GeneratorExit": lambda: GeneratorExit("closed"),
    "KeyboardInterrupt": lambda: KeyboardInterrupt("ctrl-c"),
    "SystemExit": lambda: SystemExit(3),
    "subclass of SystemExit": lambda: Exits("own"),
    "CancelledError": lambda: asyncio.CancelledError("self"),
    "BaseException": lambda: BaseException("base"),
    "own BaseException": lambda: OwnBase("own"),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("group", [OwnBase("in"), KeyboardInterrupt()]),
    "group of stops": lambda: ExceptionGroup("group", [StopIteration(1), ValueError("in")]),
    "broken text": lambda: BrokenText(),
    "text stops": lambda: TextStops(),
    "text interrupts": lambda: TextInterrupts(),
    "text is None": lambda: TextIsNone(),
    "unpicklable": lambda: Unpicklable("live"),
    "odd constructor": lambda: OddConstructor(3, why="reasons"),
    "odd attributes": lambda: WithoutAttributes("odd"),
    "live argument": lambda: ValueError(object()),
    "syntax": lambda: SyntaxError("bad", ("a.py", 3, 5, "x = = 1")),
    "odd syntax": lambda: SyntaxError("bad", (object(), object(), 5, 7)),  # pyright: ignore[reportCallIssue, reportArgumentType]
    "MemoryError": lambda: MemoryError("full"),
    "RecursionError": lambda: RecursionError("deep"),
    "TimeoutError": lambda: TimeoutError("late"),
    "ValueError": lambda: ValueError("plain"),
}


def raise_it(kind: str) -> NoReturn:
    """Raise an exception of that kind; its line is the author's."""
    if kind == "RecursionError":
        recursion()
    raise KINDS[kind]()
