"""The runtime's side of ``RunnerContext``: one object per execution of an action."""

from __future__ import annotations

import asyncio
import hashlib
import random
import uuid
from collections.abc import Awaitable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from threading import get_ident
from typing import Any, Literal, cast

from typing_extensions import override

from flink_agents.api.agents.observers import Phase
from flink_agents.api.common.awaited import noted
from flink_agents.api.common.metrics import MetricGroup
from flink_agents.api.context import RunnerContext
from flink_agents.api.context.asking import Answer, SubAgent
from flink_agents.api.durable import DurableCallable
from flink_agents.api.errors import (
    ContextMisuseError,
    MemoryPathError,
    UnknownSideOutputError,
)
from flink_agents.api.events import Event, Lineage, OutputEvent, lineage_of_sent, stamp, with_lineage
from flink_agents.api.events.approvals import ApprovalOutcome, Check
from flink_agents.api.events.signals import SignalWait
from flink_agents.api.models.chat import ChatResult
from flink_agents.api.resources import ResourceType, Tool
from flink_agents.api.resources.memory import MemoryObject, MemoryRef, MemoryScope
from flink_agents.api.settings.options import Configuration
from flink_agents.plan import BoundAction
from flink_agents.runtime.concurrency.clients import Clients
from flink_agents.runtime.execution.asked.asked_run import root_of
from flink_agents.runtime.execution.call_scope import durable_function, inside, name_of, running
from flink_agents.runtime.execution.chance import GuardedRandom
from flink_agents.runtime.execution.delivery import Delivery, current_delivery
from flink_agents.runtime.execution.limits import LeaveThread, Slot
from flink_agents.runtime.execution.phases import RunState
from flink_agents.runtime.execution.retry import Trial
from flink_agents.runtime.execution.routing import (
    Route,
    given_client,
    no_event,
    too_many_events,
    unknown_event,
)
from flink_agents.runtime.execution.run import Run
from flink_agents.runtime.execution.shared import Durable, RunEnvironment
from flink_agents.runtime.execution.waits.action_waits import in_turn
from flink_agents.runtime.execution.waits.approvals import Asked, approval_of
from flink_agents.runtime.execution.waits.delayed import send_later
from flink_agents.runtime.execution.waits.forgotten import note_made
from flink_agents.runtime.execution.waits.kinds import fit_of, pause_of, signal_wait_of
from flink_agents.runtime.journal.calls import StepCalls
from flink_agents.runtime.state.memory import TreeObject
from flink_agents.runtime.state.reads import Read, note_for
from flink_agents.runtime.state.suspended import OpenWait

_MISSING = object()


class ActionRun:
    """An action run, one execution of one action on one event: what the runtime keeps of it.

    Args:
        shared: What all runs of the operator share.
        run: The run.
        action: The action.
        event: The event that it handles.

    Attributes:
        sent: What it emitted, in order.
        side: Pairs of tag and value for side outputs, or None.
        awaited: What it returned and has to be awaited, or None.
        mark: Where its writes to memory begin.
        task: The task that awaits the author's code, or None.
        tasks: What it started on the loop, or None.
        trial: What is known of it where it is no first attempt on Flink's thread, or None.
        calls: Its durable calls, or None.
        delivery: Gives it what it waits for, in order; None where nothing can be recorded.
        context: What its code was given; None before that and behind its end.
        asks: How many agents each of its tasks asked, by the way to the task, or None.
        suspended: What it waits for where its run is being suspended, or None.
        put: How many events and side outputs it had put out then.
        unawaited: What its code has to await, and perhaps has, or None.
        reads: What it read of memory and can change, or None; False if nobody checks it.
    """

    __slots__ = (
        "_active",
        "_path",
        "_thread",
        "action",
        "asks",
        "awaited",
        "calls",
        "context",
        "delivery",
        "event",
        "mark",
        "put",
        "reads",
        "run",
        "sent",
        "shared",
        "side",
        "suspended",
        "task",
        "tasks",
        "trial",
        "unawaited",
    )

    def __init__(self, shared: RunEnvironment, run: Run, action: BoundAction, event: Event) -> None:
        self.shared = shared
        self.run = run
        self.action = action
        self.event = event
        self.sent: list[Event] = []
        self.side: list[tuple[str, Any]] | None = None
        self.awaited: Any = None
        self.task: asyncio.Task[Any] | None = None
        self.tasks: list[Any] | None = None
        self.trial: Trial | None = None
        self.calls: StepCalls | None = None
        self.delivery: Delivery | None = None
        self.mark = len(run.undo)
        self.context: RunnerContext | None = None
        self.asks: dict[str, int] | None = None
        self.suspended: list[OpenWait] | None = None
        self.put: tuple[int, int] = (0, 0)
        self.unawaited: list[Coroutine[Any, Any, Any]] | None = None
        self.reads: list[Read] | Literal[False] | None = None
        self._thread = get_ident()
        self._active = True
        self._path: str | None = None

    @property
    def path(self) -> str:
        """What distinguishes it from others of its run, and is the same on replay."""
        if self._path is None:
            parts: list[str] = []
            lineage: Lineage | None = lineage_of_sent(self.event)
            while lineage is not None and lineage.parent is not None:
                parts.append(f"{lineage.action}[{lineage._ordinal}]")
                lineage = lineage.parent
            self._path = "/".join((*reversed(parts), self.action.name))
        return self._path

    def adopt(self) -> None:
        """Belong to this thread from here on."""
        self._thread = get_ident()

    @property
    def thread(self) -> int:
        """The thread that executes it."""
        return self._thread

    def end(self) -> None:
        """From here on every use of the context is an error."""
        self._active = False
        # They know each other, and would be garbage that only Python's collector finds.
        self.context = self.unawaited = None

    def context_here(self) -> RunnerContext | None:
        """The context, where it may be used."""
        return self.context if inside() is None and get_ident() == self._thread else None

    @property
    def own_code_of(self) -> str | None:
        """Name of the action, where the code is its own and not that of one of its durable functions."""
        return self.action.name if self._active and inside() is None else None

    has_to_await = note_made

    @property
    def over(self) -> bool:
        """Whether it has ended; a thread that cannot be stopped may go on behind that."""
        return not self._active

    def let_go(self) -> None:
        """Close its coroutine, if it has one that did not begin."""
        if asyncio.iscoroutine(self.awaited):
            self.awaited.close()

    def slot(self) -> Slot | None:
        """Its slot among what is executed.

        Raises:
            LeaveThread: It has none, since it runs on Flink's thread.
        """
        if self.trial is None or self.trial.slot is None:
            self.trial = Trial()
            raise LeaveThread
        return self.trial.slot

    def guard(self) -> None:
        """Raise where the context may not be used."""
        # A first attempt on Flink's thread has no trial, and no durable function runs on that thread.
        if (
            self._active
            and get_ident() == self._thread
            and (self.trial is None or (durable_function.get() is None and running.function is None))
        ):
            return
        function = inside()
        if function is not None:
            raise ContextMisuseError(
                f"the context of action {self.action.name!r} is used inside the durable function "
                f"{name_of(function)!r}, which is not executed again on replay",
                expected="a function that gets what it needs as arguments, and returns what follows from it",
                found=f"a use of ctx, or of memory or a resource of it, in {name_of(function)}",
                fix="read memory, get clients and draw random numbers in the action, before the call; "
                "write, send and call durably in the action, behind it",
            )
        if self._active:
            raise ContextMisuseError(
                f"the context of action {self.action.name!r} is used from another thread",
                fix="read memory before the other thread starts, and write what it returns afterwards",
            )
        raise ContextMisuseError(
            f"the context of action {self.action.name!r} is used after the action ended",
            fix="await what the action starts, and keep values instead of ctx or memory objects",
        )

    def emit(self, event: Event, recorded: bool = False) -> None:
        """Add an event to what the action sent.

        Args:
            event: The event.
            recorded: Whether it comes from a record, so that it was checked when it was sent.
        """
        self.guard()
        route = self.shared.routes.of(event)
        if route is None:
            raise no_event(self.action.name, event)
        self.take(event, route, recorded)

    def take(self, event: Event, route: Route, recorded: bool = False) -> None:
        """Add an event that goes by ``route`` to what the action sent, or has returned."""
        sent = self.sent
        if self.run.emitted + len(sent) >= self.shared.max_events:
            raise too_many_events(self.shared.max_events)
        lineage = Lineage(lineage_of_sent(self.event), self.action.name, len(sent))
        if route.leaves:
            if not recorded:
                checks, value = self.shared.output_checks, cast("OutputEvent", event).output
                # Most agents declare no type, and then only what was not awaited is rejected.
                if checks.any or hasattr(type(value), "__await__"):
                    checks.check(self.action.name, value)
            # No action sees it, so that it needs no copy where it is sent twice.
            stamp(event, lineage)
        elif route.actions or recorded:
            event = with_lineage(event, lineage)
        else:
            raise unknown_event(self.action.name, event, self.shared.routes)
        sent.append(event)


class ActionRunContext(RunnerContext):
    """What one execution of one action can do; ends with it.

    Args:
        action_run: The action run.
    """

    _config: dict[str, Any] | None = None
    _draws = 0
    _random: random.Random | None = None
    _short_term: TreeObject | None = None

    def __init__(self, action_run: ActionRun) -> None:
        self._of = action_run

    # -- where we are -----------------------------------------------------------------

    @property
    @override
    def agent_name(self) -> str:
        return self._of.shared.agent_name

    @property
    @override
    def action_name(self) -> str:
        return self._of.action.name

    @property
    @override
    def key(self) -> Any:
        return self._of.run.key

    @property
    @override
    def sequence_number(self) -> int:
        self._of.run.identify()
        return self._of.run.sequence_number

    @property
    @override
    def timestamp(self) -> int | None:
        return self._of.run.timestamp

    # -- events -----------------------------------------------------------------------

    @override
    def send_event(self, event: Event, delay: float | timedelta | None = None) -> None:
        if delay is None:
            self._of.emit(event)
        else:
            send_later(self._of, event, delay)

    @override
    def emit_to(self, tag: str, value: Any) -> None:
        self._of.guard()
        if not isinstance(tag, str) or tag not in self._of.shared.side_outputs:
            raise UnknownSideOutputError(
                f"action {self._of.action.name!r} emits to an unknown side output",
                expected=", ".join(self._of.shared.side_outputs) or "a declared one, of which there is none",
                found=repr(tag),
                fix=f"declare it on the agent: side_outputs = {{{tag!r}: str}}",
            )
        self._of.shared.output_checks.check(self._of.action.name, value, tag)
        if self._of.side is None:
            self._of.side = []
        self._of.side.append((tag, value))

    # -- memory -----------------------------------------------------------------------

    @property
    @override
    def sensory_memory(self) -> MemoryObject:
        """Return the memory; each access to the object is guarded."""
        return TreeObject(self._of.run.sensory, "", self._of.guard, note_for(self._of))

    @property
    @override
    def short_term_memory(self) -> MemoryObject:
        """Return the memory; each access to the object is guarded."""
        of, made = self._of, self._short_term
        tree = of.run.short_term
        if made is None or made.tree is not tree:
            # A step that is left behind gets a tree of its own.
            made = self._short_term = TreeObject(tree, "", of.guard, note_for(of))
        return made

    @override
    def resolve(self, ref: MemoryRef) -> Any:
        self._of.guard()
        tree = self._of.run.sensory if ref.scope is MemoryScope.SENSORY else self._of.run.short_term
        value = TreeObject(tree, "", self._of.guard, note_for(self._of)).get(ref.path, _MISSING)
        if value is _MISSING:
            raise MemoryPathError(
                f"nothing is at {ref.path!r} in {ref.scope.value} memory any more",
                fix="set it in the same run, or use short-term memory for what must stay",
            )
        return value

    # -- resources and configuration --------------------------------------------------

    @override
    def get_resource(self, name: str, resource_type: ResourceType | str) -> Any:
        self._of.guard()
        found = self._of.shared.resource(name, resource_type)
        if isinstance(found, Tool):
            return self._of.shared.limits.limited(found, self._of.slot)
        return found

    @override
    def client(self, name: str) -> Awaitable[Any]:
        self._of.guard()
        clients = self._of.shared.clients
        clients.check(name)
        if not clients.at_hand():
            raise ContextMisuseError(
                f"action {self._of.action.name!r} asks for the client {name!r}, but is no async def",
                expected="an async def action: clients live on its loop",
                found="a def action",
                fix=f"write async def, and client = await ctx.client({name!r})",
            )
        return noted("ctx.client", _client(clients, name, self._of.run.state))

    @property
    @override
    def config(self) -> Configuration:
        return self._of.shared.config

    @property
    @override
    def action_config(self) -> Mapping[str, Any]:
        if self._config is None:
            self._config = {name: _copy(value) for name, value in self._of.action.config.items()}
        return self._config

    # -- durable calls ----------------------------------------------------------------

    def _call_durably(self, what: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if what.clients:
            self._check_clients(what, kwargs)
        return self._durable.call_from_thread(self._of, what, args, kwargs)

    def _call_durably_async(
        self, what: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Awaitable[Any]:
        if what.clients:
            self._check_clients(what, kwargs)
        return self._durable.call(self._of, what, args, kwargs)

    @override
    def _ask(self, agent: SubAgent | type[SubAgent], event: Any, traced: bool = False) -> Awaitable[Answer]:
        self._of.guard()
        if self._of.shared.asking is None:
            self._of.slot()
        assert self._of.shared.asking is not None
        return self._of.shared.asking.ask(self._of, agent, event, traced)

    @override
    def _chatted(self, model: str, result: ChatResult[Any]) -> None:
        self._of.run.note(self._of, "chat", model, result.new_messages)

    def _check_clients(self, what: DurableCallable, kwargs: Mapping[str, Any]) -> None:
        """Check that the agent has the clients of a call, and that nobody else gives them."""
        self._of.guard()
        for name in what.clients:
            self._of.shared.clients.check(name)
            if name in kwargs:
                raise given_client(what.identity, name)

    @property
    def _durable(self) -> Durable:
        self._of.guard()
        if not self._of.action.journalled:
            self._of.shared.makes_calls(self._of.action)
        return self._of.shared.durable

    # -- time and chance --------------------------------------------------------------

    @override
    def now(self) -> datetime:
        return datetime.fromtimestamp(self._of.run.started_at / 1000, UTC)

    @override
    def uuid4(self) -> uuid.UUID:
        """Derive a UUID by BLAKE2b from the path of the event."""
        self._of.guard()
        digest = self._digest(f"uuid4/{self._draws}")
        self._draws += 1
        return uuid.UUID(bytes=digest, version=4)

    @override
    def random(self) -> random.Random:
        """Seed a generator by BLAKE2b from the path of the event."""
        self._of.guard()
        if self._random is None:
            self._random = GuardedRandom(int.from_bytes(self._digest("random"), "big"))
            self._random.guard = self._of.guard
        return self._random

    def _digest(self, purpose: str) -> bytes:
        path = f"{self._of.event.id}\x00{self._of.action.name}\x00{purpose}"
        return hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=16).digest()

    # -- waits ------------------------------------------------------------------------

    @override
    def _pause(self, seconds: float) -> Awaitable[None]:
        self._of.guard()
        # What an asked agent waits for, the action that asks waits for.
        return pause_of(root_of(self._of), current_delivery.get(), seconds)

    @override
    def _signal_wait(self, name: str, signal_type: Any, seconds: float | None) -> SignalWait[Any]:
        self._of.guard()
        fit = fit_of(signal_type)
        return signal_wait_of(root_of(self._of), current_delivery.get(), name, fit, seconds)

    @override
    def _approval(
        self, what: str, arguments: Mapping[str, Any], seconds: float | None, check: Check | None
    ) -> Awaitable[ApprovalOutcome]:
        self._of.guard()
        return approval_of(root_of(self._of), current_delivery.get(), Asked(what, arguments, seconds, check))

    # -- metrics ----------------------------------------------------------------------

    @property
    @override
    def agent_metric_group(self) -> MetricGroup:
        return self._of.shared.metrics

    @property
    @override
    def action_metric_group(self) -> MetricGroup:
        return self._of.shared.metrics.get_sub_group(self._of.action.name)


async def _client(clients: Clients, name: str, state: RunState) -> Any:
    if clients.is_open(name):
        return (await in_turn("a client", lambda: clients.get(name))).peek()
    with state.waiting(Phase.CLIENT, f"the client {name!r} to open") as wait:
        wait.awaited = lambda: clients.opens_in(name)
        return (await in_turn("a client", lambda: clients.get(name))).peek()


def _copy(value: Any) -> Any:
    """A copy of a JSON value."""
    if isinstance(value, dict):
        return {name: _copy(item) for name, item in cast("dict[str, Any]", value).items()}
    return [_copy(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


@lru_cache(maxsize=64)
def context_type(users: type[RunnerContext] | None) -> type[ActionRunContext]:
    """``ActionRunContext`` with the methods of a project's own context class."""
    if users is None:
        return ActionRunContext
    bases: Any = (users, ActionRunContext)
    return type(users.__name__, bases, {"__module__": users.__module__})
