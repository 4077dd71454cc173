"""Shows a plan: as a graph of events, actions and side outputs, as text, and as Mermaid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from flink_agents.api.common.durations import duration_text
from flink_agents.api.common.policies import DEAD_LETTER_TAG, OnError
from flink_agents.api.events import Event, InputEvent, OutputEvent
from flink_agents.api.resources import ResourceKind, ResourceType
from flink_agents.plan.model import ActionPlan, AgentPlan, ResourcePlan, RetryPlan

INPUT = f"event:{InputEvent.EVENT_TYPE}"
OUTPUT = f"event:{OutputEvent.EVENT_TYPE}"
DEAD_LETTERS = f"side:{DEAD_LETTER_TAG}"

_SHAPES = {"event": ("([", "])"), "action": ("[", "]"), "side": ("[/", "/]")}
"""The brackets of Mermaid for each kind of node: rounded, a box, slanted."""

_TITLES = {InputEvent.EVENT_TYPE: "InputEvent", OutputEvent.EVENT_TYPE: "OutputEvent"}


@dataclass(frozen=True)
class Node:
    """An event, an action or a side output.

    Attributes:
        id: Its id, unique in the graph.
        kind: "event", "action" or "side", for a side output.
        title: Its displayed name.
        notes: Further facts, one line each.
    """

    id: str
    kind: Literal["event", "action", "side"]
    title: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Flow:
    """A plan as a graph.

    Attributes:
        nodes: Nodes by id; each action comes after its triggers.
        edges: Pairs of ids: source and target.
    """

    nodes: dict[str, Node]
    edges: tuple[tuple[str, str], ...]


def flow_of(plan: AgentPlan) -> Flow:
    """Return the graph of ``plan``, with only events that enter, are emitted or are taken."""
    emitted = [InputEvent.EVENT_TYPE, *(kind for action in plan.actions for kind in action.emits)]
    classes = {event.type: {event.type, *event.bases, Event.EVENT_TYPE} for event in plan.events}
    nodes: dict[str, Node] = {}
    edges: dict[tuple[str, str], None] = {}

    def classes_of(kind: str) -> set[str]:
        return classes.get(kind, {kind, Event.EVENT_TYPE})

    def accepts(action: ActionPlan, kind: str) -> bool:
        is_accepted = kind in action.trigger_types or not classes_of(kind).isdisjoint(action.trigger_classes)
        return is_accepted and kind != OutputEvent.EVENT_TYPE

    def event_node(kind: str) -> str:
        return nodes.setdefault(f"event:{kind}", Node(f"event:{kind}", "event", event_title(kind))).id

    def side_node(tag: str) -> str:
        return nodes.setdefault(f"side:{tag}", Node(f"side:{tag}", "side", side_title(tag))).id

    for action in plan.actions:
        node = Node(f"action:{action.name}", "action", action.name, notes_of(action))
        incoming = [kind for kind in emitted if accepts(action, kind)]
        # A trigger that no action is known to emit gets a separate node.
        known_classes = set[str]().union(*map(classes_of, incoming))
        incoming += [trigger for trigger in action.triggers if trigger not in known_classes]
        edges.update({(event_node(kind), node.id): None for kind in incoming})
        nodes[node.id] = node
        edges.update({(node.id, event_node(kind)): None for kind in action.emits})
        edges.update({(node.id, side_node(tag)): None for tag in side_outputs_of(action, plan)})
    if plan.on_unhandled == OnError.DEAD_LETTER:
        handled = {source for source, _ in edges} | {OUTPUT}
        events = [node_id for node_id, node in nodes.items() if node.kind == "event"]
        edges.update({(event, side_node(DEAD_LETTER_TAG)): None for event in events if event not in handled})
    return Flow(nodes, tuple(edges))


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


def to_text(plan: AgentPlan) -> str:
    """Return the plan for a terminal: actions with the events they take and emit, then all else."""
    head = [f"agent {one_line(plan.name)}"]
    if plan.agent_class is not None:
        head.append(f"  class        {plan.agent_class}")
    head.append(f"  fingerprint  {plan.fingerprint}")
    for name, value in plan.plain().items():
        if value is not None:
            head.append(f"  {name.replace('_', ' '):<12} {value}")
    if plan.retry is not None:
        head.append(f"  {'retry':<12} {retry_text(plan.retry).removeprefix('retry ')}")
    if plan.output_type is not None:
        head.append(f"  output type  {plan.output_type}")
    sections = [
        ("configuration", [(name, repr(value)) for name, value in plan.configuration.items()]),
        ("actions", [(action.name, _describe_action(action, plan)) for action in plan.actions]),
        (
            "resources",
            [
                (f"{resource.type.value} {resource.name}", _describe_resource(resource))
                for resource in plan.resources
            ],
        ),
        ("side outputs", list(plan.side_outputs.items())),
    ]
    lines = head + [line for title, rows in sections if rows for line in _section(title, rows)]
    return "\n".join(line.rstrip() for line in lines)


def _section(title: str, rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the lines of a section: a blank one, its title, and its rows in two columns."""
    rows = [(one_line(name), one_line(text)) for name, text in rows]
    width = max(len(name) for name, _ in rows)
    yield ""
    yield title
    for name, text in rows:
        yield f"  {name:<{width}}  {text}"


def _describe_action(action: ActionPlan, plan: AgentPlan) -> str:
    """Return triggers, events and notes of an action as one line."""
    triggers = ", ".join(map(event_title, action.triggers))
    outputs = [*map(event_title, action.emits), *map(side_title, side_outputs_of(action, plan))]
    emitted = ", ".join(outputs) or "nothing"
    notes = "; ".join(notes_of(action))
    return f"{triggers} -> {emitted}" + (f"  ({notes})" if notes else "")


def _describe_resource(resource: ResourcePlan) -> str:
    """Return a resource as one line: arguments of a tool, variables of a prompt, or class and references."""
    if resource.parameters is not None:
        arguments = ", ".join(resource.parameters.get("properties", {}))
        limits = "; ".join(resource.texts())
        return f"({arguments})  {resource.description or ''}" + (f"  ({limits})" if limits else "")
    if resource.prompt is not None:
        return ", ".join(sorted(resource.prompt.variables))
    parts = [resource.descriptor.clazz] if resource.descriptor else []
    references = ", ".join(f"{reference.type.value} {reference.name}" for reference in resource.references)
    return "  ".join([*parts, *([f"-> {references}"] if references else [])])


def one_line(text: str) -> str:
    """Return ``text`` in one line, without control characters that would affect a terminal."""
    return "".join(
        character if character.isprintable() else "\N{REPLACEMENT CHARACTER}"
        for character in " ".join(text.split())
    )


def to_mermaid(plan: AgentPlan) -> str:
    """Return the graph as Mermaid text.

    Events are rounded, actions are boxes, side outputs are slanted, and resources are separate; a dotted
    arrow leads from an action to a client that it uses.
    """
    flow = flow_of(plan)
    ids = {node: f"n{index}" for index, node in enumerate(flow.nodes)}
    lines = ["flowchart LR"]
    lines += [f"    {ids[node.id]}{_mermaid_shape(node)}" for node in flow.nodes.values()]
    lines += [f"    {ids[source]} --> {ids[target]}" for source, target in flow.edges]
    if plan.resources:
        lines.append("    subgraph resources")
        numbers = {
            (resource_plan.type, resource_plan.name): f"r{index}"
            for index, resource_plan in enumerate(plan.resources)
        }
        for resource in plan.resources:
            label = _mermaid_text(f"{resource.type.value}: {resource.name}")
            lines.append(f'        {numbers[resource.type, resource.name]}["{label}"]')
        for resource in plan.resources:
            for reference in resource.references:
                target = numbers[reference.type, reference.name]
                lines.append(f"        {numbers[resource.type, resource.name]} -.-> {target}")
        lines.append("    end")
        lines += _uses(plan, ids, numbers)
    ends = [ids[node] for node in (INPUT, OUTPUT) if node in ids]
    if ends:
        lines.append("    classDef ends fill:#ecfdf5,stroke:#34d399")
        lines.append(f"    class {','.join(ends)} ends")
    return "\n".join(lines)


def _uses(
    plan: AgentPlan, ids: Mapping[str, str], numbers: Mapping[tuple[ResourceKind, str], str]
) -> list[str]:
    """Return the dotted arrows from actions to the clients that they use."""
    return [
        f"    {ids[f'action:{action.name}']} -.-> {numbers[ResourceType.CLIENT, name]}"
        for action in plan.actions
        for name in action.clients
        if (ResourceType.CLIENT, name) in numbers
    ]


def _mermaid_shape(node: Node) -> str:
    """Return a node in the syntax of Mermaid, with its notes below its title."""
    text = "<br/>".join(map(_mermaid_text, (node.title, *node.notes)))
    left_bracket, right_bracket = _SHAPES[node.kind]
    return f'{left_bracket}"{text}"{right_bracket}'


def _mermaid_text(text: str) -> str:
    """Return ``text`` in quotes, with entities for characters that Mermaid or HTML would read as markup."""
    return "".join(
        character if character.isalnum() or character in " _-.,:()" else f"#{ord(character)};"
        for character in one_line(text)
    )
