"""Events: they trigger actions, and actions emit them.

An event is a frozen pydantic class. ``InputEvent`` wraps a record of the stream, ``OutputEvent`` carries a
value out of the agent, and you define all other classes::

    class OrderPlaced(Event):
        order_id: str
        total: float

An event has an ``id`` and a lineage once it has been sent. Both are derived from the run (job, key, sequence
number) and from the path of events and actions that led to the event, so they are the same on replay. They do
not affect equality or serialization, and they are computed on demand.
"""

from __future__ import annotations

import hashlib
from inspect import formatannotation
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from pydantic import BaseModel, ConfigDict
from typing_extensions import TypeVar

from flink_agents.api.common.places import place_of_class
from flink_agents.api.errors import AgentDefinitionError

DELAYED_TAG = "delayed-events"
"""Tag of the side output, in memory and records, in which an execution collects its delayed events."""


class Lineage:
    """The origin of a sent event, which the runtime sets and ``Event`` exposes.

    Args:
        parent: Lineage of the event whose action sent this one; None for an input.
        action: Name of that action; empty for an input.
        ordinal: Position of this event among those that the action sent, from 0.
    """

    __slots__ = ("_digest", "_ordinal", "action", "parent")

    def __init__(self, parent: Lineage | None, action: str, ordinal: int) -> None:
        self.parent = parent
        self.action = action
        self._ordinal = ordinal
        self._digest: str | None = None

    @property
    def ordinal(self) -> int:
        """Position of the event among those that the action sent; for an input, the number of its run."""
        return self._ordinal

    @property
    def id(self) -> str:
        """Id of the event: 24 hexadecimal digits, equal for equal paths."""
        if self._digest is None:
            # From the first ancestor on: a chain may be longer than Python's stack allows.
            chain: list[Lineage] = []
            ancestor: Lineage | None = self
            while ancestor is not None and ancestor._digest is None:
                chain.append(ancestor)
                ancestor = ancestor.parent
            digest = ancestor._digest if ancestor is not None else ""
            for lineage in reversed(chain):
                path = f"{digest}\x00{lineage._step_text()}\x00{lineage._ordinal}"
                encoded = path.encode("utf-8", "surrogatepass")
                digest = lineage._digest = hashlib.blake2b(encoded, digest_size=12).hexdigest()
        assert self._digest is not None
        return self._digest

    @property
    def upstream_id(self) -> str | None:
        """Id of the event whose action sent the event; None for an input."""
        return self.parent.id if self.parent is not None else None

    @property
    def upstream_action(self) -> str | None:
        """Name of the action that sent the event; None for an input."""
        return self.action if self.parent is not None else None

    def _step_text(self) -> str:
        """Return the text of the step from the parent to the event, from which the id is computed."""
        return self.action


class InputLineage(Lineage):
    """The lineage of an input, which starts a run.

    Args:
        journal_id: Identity of the job that the key's runs belong to.
        key_text: Canonical text of the key.
        sequence_number: Number of the run within the key.

    Attributes:
        known: True if code has read an id of the run's events, which depends on the run's number.
    """

    __slots__ = ("_journal_id", "_key_text", "known")

    def __init__(self, journal_id: str, key_text: str, sequence_number: int) -> None:
        # Same as in the base class, without a call: one is created for each input.
        self.parent = self._digest = None
        self.action = ""
        self._ordinal = sequence_number
        self._journal_id = journal_id
        self._key_text = key_text
        self.known = False

    @property
    def ordinal(self) -> int:
        """The number of the run; after the first read, the number must not change."""
        self.known = True
        return self._ordinal

    def _step_text(self) -> str:
        # Every id of the run is computed from this one first.
        self.known = True
        return f"{self._journal_id}\x00{self._key_text}"


class DelayedLineage(InputLineage):
    """The lineage of a delayed event, which starts a run as an input does.

    Args:
        journal_id: Identity of the job that the key's runs belong to.
        key_text: Canonical text of the key.
        sequence_number: Number of the run that the event starts.
        action: Name of the action that sent it.
        upstream: Id of the event which that action handled.
        run_id: Id of the run that sent it.
        sender: Number of the run that sent it.

    Attributes:
        run_id: Id of the run that sent the event.
        sender: Number of the run that sent it.
    """

    __slots__ = ("_upstream", "_upstream_action", "run_id", "sender")

    def __init__(
        self,
        journal_id: str,
        key_text: str,
        sequence_number: int,
        *,
        action: str,
        upstream: str,
        run_id: str,
        sender: int,
    ) -> None:
        super().__init__(journal_id, key_text, sequence_number)
        self._upstream = upstream
        self._upstream_action = action
        self.run_id = run_id
        self.sender = sender

    @property
    def upstream_id(self) -> str | None:
        """Id of the event whose action sent this one, in another run."""
        return self._upstream

    @property
    def upstream_action(self) -> str | None:
        """Name of the action that sent this one, in another run."""
        return self._upstream_action


class AskLineage(Lineage):
    """The lineage of an event that an action sent to a sub-agent.

    Args:
        parent: Lineage of the event that the action handles.
        action: Name of the action.
        agent: Name of the sub-agent.
        task: Path of the action's task that calls the sub-agent; empty for the action itself.
        number: Number of earlier calls of that task.
    """

    __slots__ = ("_agent", "_task")

    def __init__(self, parent: Lineage | None, action: str, agent: str, task: str, number: int) -> None:
        super().__init__(parent, action, number)
        self._agent = agent
        self._task = task

    def _step_text(self) -> str:
        return f"{self.action}\x00ask\x00{self._agent}\x00{self._task}"


class Event(BaseModel):
    """Base of all events. Subclasses declare their payload as pydantic fields.

    ``EVENT_TYPE`` is the type string of the class in plans, YAML and logs. It defaults to the class name and
    must be unique within an agent.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True, extra="forbid")
    __slots__ = ("_lineage",)

    EVENT_TYPE: ClassVar[str] = "Event"
    _lineage: ClassVar[Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _check_fields(cls)

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if "EVENT_TYPE" not in cls.__dict__:
            generic: Any = cls.__pydantic_generic_metadata__["origin"]
            cls.EVENT_TYPE = cls.__name__
            if generic is not None:
                cls.EVENT_TYPE = generic.EVENT_TYPE + cls.__name__.removeprefix(generic.__name__)

    @property
    def event_type(self) -> str:
        """The type string of this event: that of its class, if it is not a ``NamedEvent``."""
        return type(self).EVENT_TYPE

    @property
    def id(self) -> str | None:
        """Stable id, or None if the event has not been sent."""
        lineage = self.lineage
        return lineage.id if lineage is not None else None

    @property
    def upstream_event_id(self) -> str | None:
        """Id of the event whose action sent this one; None for inputs and unsent events."""
        lineage = self.lineage
        return lineage.upstream_id if lineage is not None else None

    @property
    def upstream_action_name(self) -> str | None:
        """Name of the action that sent this event; None for inputs and unsent events."""
        lineage = self.lineage
        return lineage.upstream_action if lineage is not None else None

    @property
    def lineage(self) -> Lineage | None:
        """The path that led to the event, or None if it has not been sent."""
        try:
            return lineage_of_sent(self)
        except AttributeError:
            return None


_RESERVED = frozenset(
    {"_lineage", "event_type", "id", "lineage", "upstream_action_name", "upstream_event_id"}
)
"""Names that ``Event`` defines: a field with such a name would be hidden, or hide it."""


def _check_fields(event: type[Event]) -> None:
    """Check the fields that ``event`` and its mixins declare, before pydantic reads them.

    Raises:
        AgentDefinitionError: A field has a name that ``Event`` needs.
    """
    for owner in event.__mro__:
        if owner in Event.__mro__:
            continue
        for name, annotation in vars(owner).get("__annotations__", {}).items():
            is_field = "ClassVar" not in str(annotation)
            if name in _RESERVED:
                fix = f"rename it, for example to 'own_{name.lstrip('_')}'"
            elif name == "EVENT_TYPE" and is_field:
                fix = "write EVENT_TYPE = '...' without annotation"
            else:
                continue
            written = annotation if isinstance(annotation, str) else formatannotation(annotation)
            raise AgentDefinitionError(
                f"the event class {event.__name__} declares {name!r}, which each event already has",
                expected="fields with names other than " + ", ".join(sorted({"EVENT_TYPE", *_RESERVED})),
                found=f"{name}: {written}",
                fix=fix,
                where=place_of_class(owner),
            )


# The slot's own descriptor: twice as fast as pydantic's attribute access.
lineage_of_sent = Event.__dict__["_lineage"].__get__
"""``lineage_of_sent(event)`` returns the lineage of a sent event."""

stamp = Event.__dict__["_lineage"].__set__
"""``stamp(event, lineage)`` sets the lineage of a new event."""


InputT = TypeVar("InputT", default=Any)


class InputEvent(Event, Generic[InputT]):
    """A record of the input stream.

    ``InputEvent[Order]`` tells type checkers the type of ``event.input``. It is the same class at run time:
    its actions get every input.

    Attributes:
        input: The record, with the type it has in the stream.
    """

    EVENT_TYPE = "_input_event"

    input: InputT

    if not TYPE_CHECKING:

        def __class_getitem__(cls, input_type: Any) -> Any:
            return cls


class OutputEvent(Event):
    """A value that leaves the agent; it triggers no action.

    Attributes:
        output: The value, which becomes a record of the output stream.
    """

    EVENT_TYPE = "_output_event"

    output: Any


class AgentCallEvent(Event):
    """Base of events with which other agents call an agent: ``ctx.call_agent(agent, event)``.

    The agent's own actions need not emit them.
    """


class NamedEvent(Event):
    """An event without an event class: a type string and attributes.

    For agents whose events are named in YAML or arrive by name. Prefer a class where the
    payload is known.

    Attributes:
        type: The type string, which triggers of actions name.
        attributes: The payload: values by name.
    """

    EVENT_TYPE = "_named_event"

    type: str
    attributes: dict[str, Any] = {}

    @property
    def event_type(self) -> str:
        """The type string that was passed to the constructor."""
        return self.type


def with_lineage(event: Event, lineage: Lineage) -> Event:
    """Return ``event`` with a lineage; if it was sent before, a copy with the lineage."""
    try:
        lineage_of_sent(event)
    except AttributeError:
        # It was not sent before.
        pass
    else:
        event = event.model_copy()
    stamp(event, lineage)
    return event
