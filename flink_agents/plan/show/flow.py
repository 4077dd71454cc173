"""The graph of a plan: events lead to actions, actions to events, side outputs and dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from flink_agents.api.common.durations import duration_text
from flink_agents.api.common.policies import DEAD_LETTER_TAG, OnError
from flink_agents.api.events import Event, InputEvent, OutputEvent
from flink_agents.plan.model import ActionPlan, AgentPlan, EventPlan, RetryPlan

INPUT = f"event:{InputEvent.EVENT_TYPE}"
OUTPUT = f"event:{OutputEvent.EVENT_TYPE}"
DEAD_LETTERS = f"side:{DEAD_LETTER_TAG}"

_TITLES = {InputEvent.EVENT_TYPE: "InputEvent", OutputEvent.EVENT_TYPE: "OutputEvent"}


@dataclass(frozen=True)
class Node:
    """An event, an action or a side output.

    Attributes:
        id: Its id, unique in the graph.
        kind: The kind of the node.
        title: Its name.
        notes: Further facts, one line each.
    """

    id: str
    kind: Literal["event", "action", "side"]
    title: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Flow:
    """A graph.

    Attributes:
        nodes: Nodes by id; each action comes after its triggers.
        edges: Pairs of ids: source and target.
    """

    nodes: dict[str, Node]
    edges: tuple[tuple[str, str], ...]


def flow_of(plan: AgentPlan) -> Flow:
    """Return the graph of ``plan``, with only events that enter, are emitted or are taken."""
    emitted = {INPUT: None, **{f"event:{kind}": None for emitter in plan.actions for kind in emitter.emits}}
    events_by_type = {event.type: event for event in plan.events}
    nodes: dict[str, Node] = {}
    edges: dict[tuple[str, str], None] = {}
    for action in plan.actions:
        target = f"action:{action.name}"
        present = [EventPlan(type=node_id.partition(":")[2]) for node_id in emitted]
        incoming_types = [
            event.type for event in present if accepts(action, events_by_type.get(event.type, event))
        ]
        # A trigger that no action is known to emit gets a separate node.
        incoming_types += [
            trigger
            for trigger in action.triggers
            if not any(_matches(trigger, kind, events_by_type) for kind in incoming_types)
        ]
        for kind in incoming_types:
            nodes.setdefault(f"event:{kind}", _event_node(kind))
            edges[f"event:{kind}", target] = None
        nodes[target] = Node(target, "action", action.name, notes_of(action))
        for kind in action.emits:
            nodes.setdefault(f"event:{kind}", _event_node(kind))
            edges[target, f"event:{kind}"] = None
        for tag in side_outputs_of(action, plan):
            nodes.setdefault(f"side:{tag}", _side_node(tag))
            edges[target, f"side:{tag}"] = None
    if plan.on_unhandled == OnError.DEAD_LETTER:
        handled = {source for source, _ in edges} | {OUTPUT}
        for node in [
            event_node.id
            for event_node in nodes.values()
            if event_node.kind == "event" and event_node.id not in handled
        ]:
            nodes.setdefault(DEAD_LETTERS, _side_node(DEAD_LETTER_TAG))
            edges[node, DEAD_LETTERS] = None
    return Flow(nodes, tuple(edges))


def accepts(action: ActionPlan, event: EventPlan) -> bool:
    """Return True if ``action`` takes events of the type ``event`` when its condition is true."""
    if event.type == OutputEvent.EVENT_TYPE:
        return False
    kinds = {event.type, *event.bases, Event.EVENT_TYPE}
    return event.type in action.trigger_types or not kinds.isdisjoint(action.trigger_classes)


def side_outputs_of(action: ActionPlan, plan: AgentPlan) -> tuple[str, ...]:
    """Return the tags of the side outputs that an action may write to, dead letters last."""
    letters = (action.on_error or plan.on_error) is OnError.DEAD_LETTER
    return (*action.tags, *([DEAD_LETTER_TAG] if letters else []))


def side_title(tag: str) -> str:
    """Return the displayed name of a side output."""
    return "dead letters" if tag == DEAD_LETTER_TAG else f"side output {tag}"


def notes_of(action: ActionPlan) -> tuple[str, ...]:
    """Return short descriptions of an action, one for each fact besides its events."""
    notes = ["async"] if action.is_async else []
    if action.when is not None:
        notes.append(f"when {action.when}")
    if action.retry is not None:
        notes.append(retry_text(action.retry))
    if action.calls:
        notes.append(f"durable: {', '.join(action.calls)}")
    if action.clients:
        notes.append(f"client {', '.join(action.clients)}")
    return (*notes, *action.texts())


def retry_text(retry: RetryPlan) -> str:
    """Return a short description of a retry policy."""
    attempts = "" if retry.max_attempts is None else f", {retry.max_attempts} attempts"
    duration = "" if retry.max_duration is None else f", for {duration_text(retry.max_duration)}"
    return f"retry after {duration_text(retry.initial_interval)}{attempts}{duration}"


def event_title(kind: str) -> str:
    """Return the displayed name of an event type."""
    return _TITLES.get(kind, kind)


def _event_node(kind: str) -> Node:
    return Node(f"event:{kind}", "event", event_title(kind))


def _side_node(tag: str) -> Node:
    return Node(f"side:{tag}", "side", side_title(tag))


def _matches(trigger: str, kind: str, events_by_type: dict[str, EventPlan]) -> bool:
    bases = events_by_type[kind].bases if kind in events_by_type else ()
    return trigger == kind or trigger in bases or trigger == Event.EVENT_TYPE
