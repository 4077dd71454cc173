"""Executes a program, and logs its observations."""

from __future__ import annotations

import asyncio
import copy
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

from flink_agents import OutputEvent
from flink_agents.api.errors import RecordedFailureError, SignalTimeoutError
from tests.random_programs import events
from tests.random_programs.calls import CALLS, CallFailed, Stumbled
from tests.random_programs.programs import Block
from tests.random_programs.world import Entry, World, wait_inside

LATER_SECONDS = 2.0
"""The delay of all delayed events."""

EXPECTED = (CallFailed, TimeoutError, ExceptionGroup, RecordedFailureError)


def expect(error: BaseException) -> None:
    """Let a program go on behind an error that it may catch; all others are faults."""
    if not isinstance(error, EXPECTED) and type(error).__name__ != "Strange":
        raise error


Construct = Callable[["Execution", str, list[Block], list[Any]], Awaitable[Any]]

CONSTRUCTS: dict[str, Construct] = {}
"""How to execute the operations that make tasks or timers; ``constructs`` fills it."""


def short(value: Any) -> str:
    """A text that differs where ``value`` does."""
    return f"{zlib.crc32(repr(value).encode()):08x}"


def name_of(error: BaseException) -> str:
    """An error as it is noted."""
    if isinstance(error, ExceptionGroup):
        return f"{type(error).__name__}({', '.join(map(name_of, error.exceptions))})"
    return f"{type(error).__name__}: {error}"


class Execution:
    """One execution of an action.

    Args:
        ctx: Its context.
        event: Its event.
        name: Name of the input.
        label: What the execution is called in transcripts.
    """

    def __init__(self, ctx: Any, event: Any, name: str, label: str) -> None:
        self.ctx = ctx
        self.event = event
        self.name = name
        self.entries: list[Entry] = World.begin(label)
        self.sent: list[Any] = []
        self.depth = 0

    def note(self, *entry: Any) -> None:
        """Note something that was seen."""
        self.entries.append(entry)

    def within(self, ctx: Any, event: Any, label: str) -> Execution:
        """An execution of an action of an agent that it asks."""
        inner = copy.copy(self)
        inner.ctx = ctx
        inner.event = event
        # A replay does not execute an attempt that failed, so what it saw is not part of this execution.
        inner.entries = World.begin(label)
        inner.depth += 1
        return inner

    # -- blocks -------------------------------------------------------------------------

    async def block(self, place: str, ops: Block) -> list[Any]:
        """Execute operations one after the other; returns what each came to."""
        seen: list[Any] = []
        for number, (kind, *args) in enumerate(ops):
            seen.append(await self.operation(f"{place}.{number}", kind, args, seen))
        return seen

    async def operation(self, here: str, kind: str, args: list[Any], seen: list[Any]) -> Any:
        """Execute an operation; returns what it came to."""
        if kind == "call":
            return await self.call(here, args[0], args[1], seen)
        if kind == "pause":
            wait_inside()
            for _ in range(args[0]):
                await asyncio.sleep(0)
            return None
        if kind == "sleep":
            await asyncio.sleep(args[0])
            self.note("slept", here)
            return None
        if kind in ("stumble", "hang"):
            return await self.stumble(here, kind)
        if kind == "nap":
            await self.ctx.sleep(args[0])
            self.note("napped", here)
            return None
        if kind == "listen":
            return await self.listen(here, args[0])
        if kind == "approve":
            return await self.approve(here, args[0])
        if kind in CONSTRUCTS:
            branches, *settings = args
            return await CONSTRUCTS[kind](self, here, branches, settings)
        return self.at_once(here, kind, args, seen)

    async def stumble(self, here: str, kind: str) -> None:
        """Fail, or hang, each second time, for a reason that nothing records."""
        World.tried[f"{here} {kind}"] += 1
        if World.tried[f"{here} {kind}"] % 2:
            if kind == "hang":
                await asyncio.get_running_loop().create_future()
            raise Stumbled(here)

    async def listen(self, here: str, timeout: float | None) -> Any:
        """Wait for a signal that is named by the place, or as all of its key are."""
        try:
            answer = await self.ctx.wait_for_signal(here, str, timeout=timeout)
        except SignalTimeoutError:
            answer = "none"
        self.note("answered", here, answer)
        return answer

    async def approve(self, here: str, timeout: float | None) -> Any:
        """Ask somebody."""
        outcome = await self.ctx.request_approval(here, {"place": here}, timeout=timeout)
        self.note("decided", here, str(outcome.decision), dict(outcome.arguments))
        return [str(outcome.decision), outcome.arguments["place"]]

    def plain_block(self, place: str, ops: Block) -> None:
        """Execute operations of a ``def`` action."""
        seen: list[Any] = []
        for number, (kind, *args) in enumerate(ops):
            here = f"{place}.{number}"
            if kind == "call":
                seen.append(self.plain_call(here, args[0], args[1], seen))
            else:
                seen.append(self.at_once(here, kind, args, seen))

    # -- operations ---------------------------------------------------------------------

    def at_once(self, here: str, kind: str, args: list[Any], seen: list[Any]) -> Any:
        """Execute an operation that waits for nothing."""
        memory = self.ctx.short_term_memory
        if kind == "set":
            memory.set(args[0], f"{here} {short(seen)}")
        elif kind == "append":
            memory.append("list", f"{here} {short(seen)}")
        elif kind == "delete":
            if memory.exists(args[0]):
                memory.delete(args[0])
        elif kind in ("read", "emit"):
            return self.look(here, kind, args[0], seen)
        elif kind == "out":
            self.send(OutputEvent(output=(self.ctx.key, self.name, here, short(seen))))
        elif kind == "side":
            self.ctx.emit_to("audit", (self.ctx.key, self.name, here, short(seen)))
        elif kind == "uuid":
            self.note("uuid", here, str(self.ctx.uuid4()))
            return self.entries[-1][-1]
        elif kind in ("send", "later"):
            self.pass_on(here, kind, args[0][0], seen)
        elif kind == "spoil":
            self.event.data["spoiled"] = self.event.data.get("spoiled", 0) + 1
        elif kind == "raise":
            raise ValueError(here)
        else:
            raise AssertionError(f"nobody executes {kind}")
        return None

    def pass_on(self, here: str, kind: str, ops: Block, seen: list[Any]) -> None:
        """Have the next action execute operations, in this run or in one that an event begins later."""
        data = {"from": here, "seen": short(seen)}
        event = events.Nested(
            name=self.name, place=f"{here}{'n' if kind == 'send' else 'l'}", ops=ops, data=data
        )
        if kind == "later":
            self.ctx.send_event(event, delay=LATER_SECONDS)
        else:
            self.send(event)

    def look(self, here: str, kind: str, path: str, seen: list[Any]) -> Any:
        """Read memory, and put out what is there."""
        value = self.ctx.short_term_memory.get(path, None)
        self.note("read", here, path, value)
        if kind == "emit":
            self.send(OutputEvent(output=(self.ctx.key, self.name, here, value, short(seen))))
        return value

    def send(self, event: Any) -> None:
        """Send an event, at once or when the action yields next."""
        self.sent.append(event)

    # -- calls ----------------------------------------------------------------------------

    def arguments(self, here: str, kind: str, seen: list[Any]) -> dict[str, Any]:
        """What a call is given besides its place, and notes of it."""
        if kind == "token":
            return {"token": str(self.ctx.uuid4())}
        if kind == "number":
            return {"token": str(self.ctx.random().random())}
        if kind == "event":
            return {"token": str(self.event.id)}
        if kind == "loose":
            return {"token": str(self.ctx.uuid4())}
        if kind == "now":
            return {"token": str(self.ctx.now())}
        if kind == "changing":
            return {"given": {"place": here, "seen": short(seen)}}
        return {}

    async def call(self, here: str, kind: str, caught: bool, seen: list[Any]) -> Any:
        """Make a durable call."""
        arguments = self.arguments(here, kind, seen)
        self.note("make", here, *map(str, arguments.values()))
        try:
            value = await self.ctx.durable_execute_async(CALLS[kind], here, short(seen), **arguments)
        except asyncio.CancelledError:
            self.note("cancelled", here)
            raise
        except Exception as error:
            expect(error)
            self.note("failed", here, name_of(error), *map(str, arguments.values()))
            if not caught:
                raise
            return name_of(error)
        self.note("got", here, value, *map(str, arguments.values()))
        return value

    def plain_call(self, here: str, kind: str, caught: bool, seen: list[Any]) -> Any:
        """Make a durable call of a ``def`` action."""
        arguments = self.arguments(here, kind, seen)
        self.note("make", here, *map(str, arguments.values()))
        try:
            value = self.ctx.durable_execute(CALLS[kind], here, short(seen), **arguments)
        except Exception as error:
            expect(error)
            self.note("failed", here, name_of(error), *map(str, arguments.values()))
            if not caught:
                raise
            return name_of(error)
        self.note("got", here, value, *map(str, arguments.values()))
        self.ctx.short_term_memory.set("last", value)
        return value
