"""The runtime's implementation of ``RunnerContext``: one object per execution of an action."""

from __future__ import annotations

import hashlib
import math
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, cast

from typing_extensions import override

from flink_agents.api.agents.observers import Phase
from flink_agents.api.common.awaited import note_result
from flink_agents.api.common.durations import LONGEST, seconds_of
from flink_agents.api.common.metrics import MetricGroup
from flink_agents.api.context import RunnerContext
from flink_agents.api.context.asking import Answer, SubAgent
from flink_agents.api.durable import DurableCallable
from flink_agents.api.errors import (
    ContextMisuseError,
    InvalidDurationError,
    MemoryPathError,
    UnknownSideOutputError,
)
from flink_agents.api.events import DELAYED_TAG, Event, OutputEvent
from flink_agents.api.events.approvals import ApprovalOutcome, Check
from flink_agents.api.events.signals import SignalWait
from flink_agents.api.models.chat import ChatResult
from flink_agents.api.resources import ResourceType, Tool
from flink_agents.api.resources.memory import MemoryObject, MemoryRef, MemoryScope
from flink_agents.api.settings.options import Configuration
from flink_agents.runtime.execution.action_run import ActionRun
from flink_agents.runtime.execution.calls.delivery import current_delivery
from flink_agents.runtime.execution.environment import Clients, Durable
from flink_agents.runtime.execution.environment.events import (
    given_client,
    no_event,
    too_many_events,
    unknown_event,
)
from flink_agents.runtime.execution.phases import RunState
from flink_agents.runtime.execution.sub_agents.sub_agent_run import root_of
from flink_agents.runtime.execution.waits.approvals import ApprovalArguments, approval_of
from flink_agents.runtime.execution.waits.kinds import fit_of, pause_of, signal_wait_of
from flink_agents.runtime.execution.waits.run_waits import in_turn
from flink_agents.runtime.state.memory import TreeObject

_MISSING = object()


class ActionRunContext(RunnerContext):
    """The context of one execution of one action. It ends with the execution.

    Args:
        action_run: The execution.
    """

    _config: dict[str, Any] | None = None
    _draws = 0
    _random: random.Random | None = None
    _short_term: TreeObject | None = None

    def __init__(self, action_run: ActionRun) -> None:
        self._action_run = action_run

    # -- where we are -----------------------------------------------------------------

    @property
    @override
    def agent_name(self) -> str:
        return self._action_run.shared.agent.name

    @property
    @override
    def action_name(self) -> str:
        return self._action_run.action.name

    @property
    @override
    def key(self) -> Any:
        return self._action_run.run.key

    @property
    @override
    def sequence_number(self) -> int:
        self._action_run.run.identify()
        return self._action_run.run.sequence_number

    @property
    @override
    def timestamp(self) -> int | None:
        return self._action_run.run.timestamp

    # -- events -----------------------------------------------------------------------

    @override
    def send_event(self, event: Event, delay: float | timedelta | None = None) -> None:
        if delay is None:
            self._action_run.emit(event)
        else:
            send_later(self._action_run, event, delay)

    @override
    def emit_to(self, tag: str, value: Any) -> None:
        step = self._action_run
        step.guard()
        declared = step.shared.agent.side_outputs
        if not isinstance(tag, str) or tag not in declared:
            raise UnknownSideOutputError(
                f"action {step.action.name!r} emits to an unknown side output",
                expected=", ".join(declared) or "a declared one, of which there is none",
                found=repr(tag),
                fix=f"declare it on the agent: side_outputs = {{{tag!r}: str}}",
            )
        value = step.shared.output_checks.check(step.action.name, value, tag)
        if step.side is None:
            step.side = []
        step.side.append((tag, value))

    # -- memory -----------------------------------------------------------------------

    @property
    @override
    def sensory_memory(self) -> MemoryObject:
        """The memory of the run. Each access raises if the calling code may not use the context."""
        return TreeObject(
            self._action_run.run.sensory, "", self._action_run.guard, self._action_run.note_of_reads()
        )

    @property
    @override
    def short_term_memory(self) -> MemoryObject:
        """The memory of the key. Each access raises if the calling code may not use the context."""
        action_run = self._action_run
        memory = self._short_term
        tree = action_run.run.short_term
        if memory is None or memory.tree is not tree:
            # A step that is cut off gets its own tree.
            memory = self._short_term = TreeObject(tree, "", action_run.guard, action_run.note_of_reads())
        return memory

    @override
    def resolve(self, ref: MemoryRef) -> Any:
        self._action_run.guard()
        tree = (
            self._action_run.run.sensory
            if ref.scope is MemoryScope.SENSORY
            else self._action_run.run.short_term
        )
        value = TreeObject(tree, "", self._action_run.guard, self._action_run.note_of_reads()).get(
            ref.path, _MISSING
        )
        if value is _MISSING:
            raise MemoryPathError(
                f"nothing is at {ref.path!r} in {ref.scope.value} memory any more",
                fix="set it in the same run, or use short-term memory for what must stay",
            )
        return value

    # -- resources and configuration --------------------------------------------------

    @override
    def get_resource(self, name: str, resource_type: ResourceType | str) -> Any:
        self._action_run.guard()
        resource = self._action_run.shared.agent.resource(name, resource_type)
        if isinstance(resource, Tool):
            return self._action_run.shared.services.limits.limited(resource, self._action_run.require_slot)
        return resource

    @override
    def client(self, name: str) -> Coroutine[Any, Any, Any]:
        self._action_run.guard()
        clients = self._action_run.shared.services.clients
        clients.check(name)
        if not clients.is_on_loop():
            raise ContextMisuseError(
                f"action {self._action_run.action.name!r} asks for the client {name!r}, but is no async def",
                expected="an async def action: clients live on its loop",
                found="a def action",
                fix=f"write async def, and client = await ctx.client({name!r})",
            )
        return note_result("ctx.client", _open_client(clients, name, self._action_run.run.state))

    @property
    @override
    def config(self) -> Configuration:
        return self._action_run.shared.config

    @property
    @override
    def action_config(self) -> Mapping[str, Any]:
        if self._config is None:
            self._config = {name: _copy_json(value) for name, value in self._action_run.action.config.items()}
        return self._config

    # -- durable calls ----------------------------------------------------------------

    def _call_durably(self, what: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if what.clients:
            self._check_clients(what, kwargs)
        return self._durable.call_from_thread(self._action_run, what, args, kwargs)

    def _call_durably_async(
        self, what: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        if what.clients:
            self._check_clients(what, kwargs)
        return self._durable.call(self._action_run, what, args, kwargs)

    @override
    def _prepare_call(
        self, agent: SubAgent | type[SubAgent], event: Any, traced: bool = False
    ) -> Callable[[], Coroutine[Any, Any, Answer]]:
        self._action_run.guard()
        if self._action_run.shared.services.sub_agents is None:
            # On Flink's task thread: the action moves to the loop.
            self._action_run.require_slot()
        assert self._action_run.shared.services.sub_agents is not None
        return self._action_run.shared.services.sub_agents.prepare_call(
            self._action_run, agent, event, traced
        )

    @override
    def _chatted(self, model: str, result: ChatResult[Any]) -> None:
        self._action_run.run.note(self._action_run, "chat", model, result.new_messages)

    def _check_clients(self, what: DurableCallable, kwargs: Mapping[str, Any]) -> None:
        """Check that the agent has the clients of a call, and that the user's code does not pass them."""
        self._action_run.guard()
        for name in what.clients:
            self._action_run.shared.services.clients.check(name)
            if name in kwargs:
                raise given_client(what.identity, name)

    @property
    def _durable(self) -> Durable:
        """The object that makes durable calls. Raises if the calling code may not use the context."""
        self._action_run.guard()
        return self._action_run.shared.services.durable

    # -- time and chance --------------------------------------------------------------

    @override
    def now(self) -> datetime:
        return datetime.fromtimestamp(self._action_run.run.started_at / 1000, UTC)

    @override
    def uuid4(self) -> uuid.UUID:
        """Derive a UUID from the path of the event, with BLAKE2b."""
        self._action_run.guard()
        digest = self._digest(f"uuid4/{self._draws}")
        self._draws += 1
        return uuid.UUID(bytes=digest, version=4)

    @override
    def random(self) -> random.Random:
        """Return a generator with a seed that derives from the path of the event, with BLAKE2b."""
        self._action_run.guard()
        if self._random is None:
            self._random = GuardedRandom(int.from_bytes(self._digest("random"), "big"))
            self._random.guard = self._action_run.guard
        return self._random

    def _digest(self, purpose: str) -> bytes:
        """Return 16 bytes that depend on event, action and ``purpose`` only: a replay gets the same."""
        path = f"{self._action_run.event.id}\x00{self._action_run.action.name}\x00{purpose}"
        return hashlib.blake2b(path.encode("utf-8", "surrogatepass"), digest_size=16).digest()

    # -- waits ------------------------------------------------------------------------

    @override
    def _wait_for_pause(self, seconds: float) -> Coroutine[Any, Any, None]:
        self._action_run.guard()
        # If a sub-agent waits, the action that called it waits.
        return pause_of(root_of(self._action_run), current_delivery.get(), seconds)

    @override
    def _signal_wait(self, name: str, signal_type: Any, seconds: float | None) -> SignalWait[Any]:
        self._action_run.guard()
        fit = fit_of(signal_type)
        return signal_wait_of(root_of(self._action_run), current_delivery.get(), name, fit, seconds)

    @override
    def _wait_for_approval(
        self, what: str, arguments: Mapping[str, Any], seconds: float | None, check: Check | None
    ) -> Awaitable[ApprovalOutcome]:
        self._action_run.guard()
        return approval_of(
            root_of(self._action_run),
            current_delivery.get(),
            ApprovalArguments(what, arguments, seconds, check),
        )

    # -- metrics ----------------------------------------------------------------------

    @property
    @override
    def agent_metric_group(self) -> MetricGroup:
        return self._action_run.shared.telemetry.metrics

    @property
    @override
    def action_metric_group(self) -> MetricGroup:
        return self._action_run.shared.telemetry.metrics.get_sub_group(self._action_run.action.name)


class GuardedRandom(random.Random):
    """A random generator that raises outside of the action. Its numbers are those of its base class.

    Attributes:
        guard: Raises if the calling code may not use the context; None while the generator is created.
    """

    guard: Callable[[], None] | None = None

    def random(self) -> float:
        """Return a float of 0 or more, below 1."""
        if self.guard is not None:
            self.guard()
        return super().random()

    def getrandbits(self, k: int, /) -> int:
        """Return an integer of ``k`` random bits."""
        if self.guard is not None:
            self.guard()
        return super().getrandbits(k)

    def seed(self, a: Any = None, version: int = 2) -> None:
        """Start the sequence of a seed; arguments as of ``random.Random.seed``."""
        if self.guard is not None:
            self.guard()
        super().seed(a, version)

    def setstate(self, state: Any) -> None:
        """Continue the sequence of a generator that returned ``state``."""
        if self.guard is not None:
            self.guard()
        super().setstate(state)


async def _open_client(clients: Clients, name: str, state: RunState) -> Any:
    """Return the open client ``name``; open it first, and wait for that, if it is not."""
    if clients.is_open(name):
        return (await in_turn("a client", lambda: clients.get(name))).peek()
    with state.waiting(Phase.CLIENT, f"the client {name!r} to open") as wait:
        wait.awaited = lambda: clients.opening_task(name)
        return (await in_turn("a client", lambda: clients.get(name))).peek()


def _copy_json(value: Any) -> Any:
    """Return a JSON value whose dicts and lists are copies, at all levels."""
    if isinstance(value, dict):
        return {name: _copy_json(item) for name, item in cast("dict[str, Any]", value).items()}
    return [_copy_json(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


@lru_cache(maxsize=64)
def context_type(users: type[RunnerContext] | None) -> type[ActionRunContext]:
    """Return the class of contexts: ``ActionRunContext`` with the methods of a project's own class.

    Args:
        users: That class; None if the project has none.
    """
    if users is None:
        return ActionRunContext
    bases: Any = (users, ActionRunContext)
    return type(users.__name__, bases, {"__module__": users.__module__})


def send_later(step: ActionRun, event: Event, delay: object) -> None:
    """Send an event that is delivered after a delay, by a separate run.

    It becomes a side output of the execution, under a reserved tag. So it is recorded, replayed and rolled
    back like one. The commit puts it into state (``operator.services.delayed``).

    Args:
        step: The execution of the action.
        event: The event. Later changes to it do not count.
        delay: The delay, in seconds or as a timedelta.

    Raises:
        InvalidDurationError: The delay is invalid.
        ContextMisuseError: The action belongs to a sub-agent.
        NotAnEventError: It is not an event.
        UnknownEventError: No action of the agent handles events of that type.
        OutputTypeError: It is an output that does not have the declared type.
        UnserializableValueError: State cannot hold it.
    """
    step.guard()
    milliseconds = _delay_ms(step.action.name, delay)
    event = _check_delayed_event(step, event)
    shared = step.shared
    side = step.side if step.side is not None else []
    delayed_count = sum(tag == DELAYED_TAG for tag, _ in side)
    if step.run.emitted + len(step.sent) + delayed_count >= shared.max_events:
        raise too_many_events(shared.max_events)
    packed = shared.events.encode(event)
    upstream = step.event.id
    side.append((DELAYED_TAG, [shared.clock() + milliseconds, packed, step.action.name, upstream]))
    step.side = side


def _check_delayed_event(step: ActionRun, event: Event) -> Event:
    """Return an event that can be delivered when its time comes, with its output as Flink carries it.

    Raises:
        ContextMisuseError: A sub-agent sends it.
        NotAnEventError: It is no event.
        UnknownEventError: No action takes it.
        OutputTypeError: Flink cannot carry its output.
    """
    if root_of(step) is not step:
        raise ContextMisuseError(
            f"action {step.action.name!r} of the sub-agent {step.shared.agent.name!r} sends an event "
            "with a delay",
            expected="delay=None: a sub-agent has answered before the time comes",
            found="delay=...",
            fix="return what is to be sent, and let the agent that asks send it",
        )
    route = step.shared.routes.find_route(event)
    if route is None:
        raise no_event(step.action.name, event)
    if route.leaves:
        value = cast("OutputEvent", event).output
        carried = step.shared.output_checks.check(step.action.name, value)
        return event if carried is value else event.model_copy(update={"output": carried})
    if not route.actions:
        raise unknown_event(step.action.name, event, step.shared.routes)
    return event


def _delay_ms(action: str, delay: object) -> int:
    """Return a delay in milliseconds, rounded up so that no event comes early."""

    def refuse(found: str) -> InvalidDurationError:
        return InvalidDurationError(
            f"action {action!r} sends an event with an invalid delay",
            expected=f"seconds or a timedelta, from 0 to {LONGEST.days} days",
            found=found,
            fix="give the time from now on, such as delay=60 or delay=timedelta(hours=1); "
            "delay=None delivers the event in this run",
        )

    return math.ceil(seconds_of(delay, refuse, least=0) * 1000)
