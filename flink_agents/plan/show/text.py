"""Shows a plan as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flink_agents.plan.model import ActionPlan, AgentPlan, ResourcePlan
from flink_agents.plan.show.flow import event_title, notes_of, retry_text, side_outputs_of, side_title


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
    rows = [(one_line(name), one_line(text)) for name, text in rows]
    width = max(len(name) for name, _ in rows)
    yield ""
    yield title
    for name, text in rows:
        yield f"  {name:<{width}}  {text}"


def _describe_action(action: ActionPlan, plan: AgentPlan) -> str:
    triggers = ", ".join(map(event_title, action.triggers))
    outputs = [*map(event_title, action.emits), *map(side_title, side_outputs_of(action, plan))]
    emitted = ", ".join(outputs) or "nothing"
    notes = "; ".join(notes_of(action))
    return f"{triggers} -> {emitted}" + (f"  ({notes})" if notes else "")


def _describe_resource(resource: ResourcePlan) -> str:
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
