"""Shows a plan: as text, as a Mermaid graph, as an SVG picture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flink_agents.plan.flow import (
    INPUT,
    OUTPUT,
    Node,
    event_title,
    flow_of,
    limit_texts,
    notes_of,
    retry_text,
)
from flink_agents.plan.model import ActionPlan, AgentPlan, ResourcePlan
from flink_agents.plan.svg import draw


def to_text(plan: AgentPlan) -> str:
    """The plan for a terminal: actions with what they take and emit, then all else."""
    head = [f"agent {_line(plan.name)}"]
    if plan.agent_class is not None:
        head.append(f"  class        {plan.agent_class}")
    head.append(f"  fingerprint  {plan.fingerprint}")
    for name, policy in (("on error", plan.on_error), ("on unhandled", plan.on_unhandled)):
        if policy is not None:
            head.append(f"  {name:<12} {policy.value}")
    if plan.retry is not None:
        head.append(f"  {'retry':<12} {retry_text(plan.retry).removeprefix('retry ')}")
    if plan.output_type is not None:
        head.append(f"  output type  {plan.output_type}")
    sections = [
        ("configuration", [(name, repr(value)) for name, value in plan.configuration.items()]),
        ("actions", [(one.name, _describe_action(one)) for one in plan.actions]),
        ("resources", [(f"{one.type.value} {one.name}", _describe_resource(one)) for one in plan.resources]),
        ("side outputs", list(plan.side_outputs.items())),
    ]
    lines = head + [line for title, rows in sections if rows for line in _section(title, rows)]
    return "\n".join(line.rstrip() for line in lines)


def to_mermaid(plan: AgentPlan) -> str:
    """The graph as Mermaid text: events are rounded, actions are boxes, resources stand apart."""
    flow = flow_of(plan)
    ids = {node: f"n{index}" for index, node in enumerate(flow.nodes)}
    lines = ["flowchart LR"]
    lines += [f"    {ids[node.id]}{_mermaid_shape(node)}" for node in flow.nodes.values()]
    lines += [f"    {ids[source]} --> {ids[target]}" for source, target in flow.edges]
    if plan.resources:
        lines.append("    subgraph resources")
        numbers = {(one.type, one.name): f"r{index}" for index, one in enumerate(plan.resources)}
        for one in plan.resources:
            label = _mermaid_text(f"{one.type.value}: {one.name}")
            lines.append(f'        {numbers[one.type, one.name]}["{label}"]')
        for one in plan.resources:
            for reference in one.references:
                target = numbers[reference.type, reference.name]
                lines.append(f"        {numbers[one.type, one.name]} -.-> {target}")
        lines.append("    end")
    ends = [ids[node] for node in (INPUT, OUTPUT) if node in ids]
    if ends:
        lines.append("    classDef ends fill:#ecfdf5,stroke:#34d399")
        lines.append(f"    class {','.join(ends)} ends")
    return "\n".join(lines)


def to_svg(plan: AgentPlan) -> str:
    """The graph as an SVG picture: inputs at the left, outputs at the right, resources below."""
    return draw(plan)


def _section(title: str, rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    rows = [(_line(name), _line(text)) for name, text in rows]
    width = max(len(name) for name, _ in rows)
    yield ""
    yield title
    for name, text in rows:
        yield f"  {name:<{width}}  {text}"


def _describe_action(action: ActionPlan) -> str:
    taken = ", ".join(map(event_title, action.triggers))
    emitted = ", ".join(map(event_title, action.emits)) or "nothing"
    notes = "; ".join(notes_of(action))
    return f"{taken} -> {emitted}" + (f"  ({notes})" if notes else "")


def _describe_resource(resource: ResourcePlan) -> str:
    if resource.parameters is not None:
        arguments = ", ".join(resource.parameters.get("properties", {}))
        limits = "; ".join(limit_texts(resource))
        return f"({arguments})  {resource.description or ''}" + (f"  ({limits})" if limits else "")
    if resource.prompt is not None:
        return ", ".join(sorted(resource.prompt.variables))
    parts = [resource.descriptor.clazz] if resource.descriptor else []
    references = ", ".join(f"{one.type.value} {one.name}" for one in resource.references)
    return "  ".join([*parts, *([f"-> {references}"] if references else [])])


def _mermaid_shape(node: Node) -> str:
    text = "<br/>".join(map(_mermaid_text, (node.title, *node.notes)))
    return f'(["{text}"])' if node.kind == "event" else f'["{text}"]'


def _mermaid_text(text: str) -> str:
    """``text`` inside quotes: what Mermaid or HTML would read as markup becomes an entity."""
    return "".join(one if one.isalnum() or one in " _-.,:()" else f"#{ord(one)};" for one in _line(text))


def _line(text: str) -> str:
    """``text`` in one line, without control characters that a terminal would obey."""
    return "".join(
        one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in " ".join(text.split())
    )
