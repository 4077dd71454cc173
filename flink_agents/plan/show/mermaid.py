"""Shows a plan as a Mermaid graph."""

from __future__ import annotations

from collections.abc import Mapping

from flink_agents.api.resources import ResourceKind, ResourceType
from flink_agents.plan.model import AgentPlan
from flink_agents.plan.show.flow import INPUT, OUTPUT, Node, flow_of
from flink_agents.plan.show.text import one_line

_SHAPES = {"event": ("([", "])"), "action": ("[", "]"), "side": ("[/", "/]")}


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
    text = "<br/>".join(map(_mermaid_text, (node.title, *node.notes)))
    left_bracket, right = _SHAPES[node.kind]
    return f'{left_bracket}"{text}"{right}'


def _mermaid_text(text: str) -> str:
    """Return ``text`` in quotes, with entities for characters that Mermaid or HTML would read as markup."""
    return "".join(
        character if character.isalnum() or character in " _-.,:()" else f"#{ord(character)};"
        for character in one_line(text)
    )
