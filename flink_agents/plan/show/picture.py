"""Draws a plan as SVG, without any other package."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from html import escape

from flink_agents.plan.model import AgentPlan, ResourcePlan
from flink_agents.plan.show.flow import INPUT, OUTPUT, Flow, Node, flow_of
from flink_agents.plan.show.layout import Layout, Point, lay_out

_MARGIN = 28.0
_HEAD = 62.0
_MINIMUM = 420.0
_LONGEST = 44
_STYLE = """
text { font-family: -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; fill: #1f2937; }
.title { font-size: 18px; font-weight: 600; }
.sub, .note { font-size: 11px; fill: #6b7280; }
.name { font-size: 13px; font-weight: 600; }
.event text { font-size: 12.5px; fill: #1e3a8a; }
.event rect { fill: #eff6ff; stroke: #60a5fa; stroke-width: 1.2; }
.end rect { fill: #ecfdf5; stroke: #34d399; }
.end text { fill: #065f46; }
.action rect { fill: #ffffff; stroke: #374151; stroke-width: 1.4; }
.resource rect { fill: #f9fafb; stroke: #d1d5db; }
.resource text { font-size: 12px; }
.edge { fill: none; stroke: #6b7280; stroke-width: 1.4; }
.back { stroke-dasharray: 5 4; }
"""


def to_svg(plan: AgentPlan) -> str:
    """The graph as an SVG picture: inputs at the left, outputs at the right, resources below."""
    flow = flow_of(plan)
    sizes = {node.id: _size(node) for node in flow.nodes.values()}
    layout = lay_out(sizes, flow.edges, first=[INPUT], last=[OUTPUT])
    body = [_edge(layout, edge) for edge in flow.edges]
    body += [_node(node, layout.centers[node.id], sizes[node.id]) for node in flow.nodes.values()]
    width = max(layout.width, _MINIMUM, *(_text_width(line, 18) for line in (plan.name,)))
    below, height = _resources(plan.resources, _HEAD + layout.height + 34, width)
    shift = (width - layout.width) / 2
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 2 * _MARGIN:.0f}" '
            f'height="{height + _MARGIN:.0f}" viewBox="{-_MARGIN:.0f} 0 {width + 2 * _MARGIN:.0f} '
            f'{height + _MARGIN:.0f}" role="img">',
            f"<title>{_clean(f'Agent {plan.name}')}</title>",
            f"<style>{_STYLE}</style>",
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7.5" refY="4" markerWidth="7" '
            'markerHeight="7" orient="auto-start-reverse"><path d="M0 0.8L7.5 4L0 7.2z" '
            'fill="#6b7280"/></marker></defs>',
            f'<rect x="{-_MARGIN:.0f}" y="0" width="100%" height="100%" fill="#ffffff"/>',
            f'<text class="title" x="0" y="30">{_clean(plan.name)}</text>',
            f'<text class="sub" x="0" y="47">{_clean(_subtitle(plan, flow))}</text>',
            f'<g transform="translate({shift:.1f} {_HEAD + 8:.1f})">',
            *body,
            "</g>",
            *below,
            "</svg>",
        ]
    )


def _subtitle(plan: AgentPlan, flow: Flow) -> str:
    events = sum(node.kind == "event" for node in flow.nodes.values())
    parts = [_count(len(plan.actions), "action"), _count(events, "event")]
    if plan.resources:
        parts.append(_count(len(plan.resources), "resource"))
    parts += [f"side output {tag}" for tag in plan.side_outputs]
    if plan.on_error is not None:
        parts.append(f"on error {plan.on_error.value}")
    if plan.on_unhandled is not None:
        parts.append(f"on unhandled {plan.on_unhandled.value}")
    return ", ".join(parts)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _size(node: Node) -> tuple[float, float]:
    lines = [_text_width(_short(node.title), 13), *(_text_width(_short(note), 11) for note in node.notes)]
    return max(84.0, *lines) + 28, 32.0 + 15 * len(node.notes) + (4 if node.notes else 0)


def _node(node: Node, center: Point, size: tuple[float, float]) -> str:
    (x, y), (width, height) = center, size
    radius = height / 2 if node.kind == "event" else 4
    names = [node.kind, *(["end"] if node.id in (INPUT, OUTPUT) else [])]
    first = y + 4.5 - (15 * len(node.notes)) / 2
    texts = [_text("name", x, first, node.title)]
    texts += [_text("note", x, first + 16 + 15 * index, note) for index, note in enumerate(node.notes)]
    return (
        f'<g class="{" ".join(names)}"><title>{_clean(" | ".join((node.title, *node.notes)))}</title>'
        f'<rect x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="{radius:.1f}"/>{"".join(texts)}</g>'
    )


def _text(name: str, x: float, y: float, text: str) -> str:
    return f'<text class="{name}" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{_clean(_short(text))}</text>'


def _edge(layout: Layout, edge: tuple[str, str]) -> str:
    names = "edge back" if edge in layout.backward else "edge"
    return f'<path class="{names}" d="{_curve(layout.routes[edge])}" marker-end="url(#arrow)"/>'


def _curve(points: list[Point]) -> str:
    """A line through ``points`` that is level at each of them."""
    parts = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x1, y1), (x2, y2) in zip(points, points[1:], strict=False):
        middle = (x1 + x2) / 2
        parts.append(f"C{middle:.1f} {y1:.1f} {middle:.1f} {y2:.1f} {x2:.1f} {y2:.1f}")
    return "".join(parts)


def _resources(resources: Iterable[ResourcePlan], top: float, width: float) -> tuple[list[str], float]:
    """The list of resources, a line for each kind, and where it ends."""
    kinds: dict[str, list[ResourcePlan]] = {}
    for resource in resources:
        kinds.setdefault(resource.type.value, []).append(resource)
    if not kinds:
        return [], top - 20
    parts = [f'<path d="M0 {top - 8:.1f}H{width:.1f}" stroke="#e5e7eb"/>']
    label = max(_text_width(kind.replace("_", " "), 11) for kind in kinds) + 18
    y = top + 8
    for kind, found in kinds.items():
        parts.append(f'<text class="sub" x="0" y="{y + 16:.1f}">{_clean(kind.replace("_", " "))}</text>')
        x = label
        for one in found:
            text = _short(_label(one))
            size = _text_width(text, 12) + 20
            if x > label and x + size > width:
                x, y = label, y + 32
            parts.append(
                f'<g class="resource"><title>{_clean(_label(one))}</title><rect x="{x:.1f}" y="{y:.1f}" '
                f'width="{size:.1f}" height="24" rx="4"/><text x="{x + size / 2:.1f}" '
                f'y="{y + 16:.1f}" text-anchor="middle">{_clean(text)}</text></g>'
            )
            x += size + 8
        y += 34
    return parts, y


def _label(resource: ResourcePlan) -> str:
    references = ", ".join(reference.name for reference in resource.references)
    return f"{resource.name} → {references}" if references else resource.name


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1].rstrip() + "…"


def _text_width(text: str, size: float) -> float:
    """About the width of ``text``; a wide character counts twice."""
    units = sum(1.7 if unicodedata.east_asian_width(one) in "WF" else 1.0 for one in text)
    return units * size * 0.6


def _clean(text: str) -> str:
    """``text`` for XML: escaped, and without the characters that XML cannot have."""
    return escape("".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text))
