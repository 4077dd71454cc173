"""Draws the graph of a plan in layers, with counts from the trace on its edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flink_agents.api.events import InputEvent
from flink_agents.plan.model import AgentPlan
from flink_agents.plan.show import DEAD_LETTERS, INPUT, Flow, Node, flow_of

Counts = Mapping[tuple[str, str], Mapping[str, int]]

NODE_WIDTH = 164
LAYER = 212
ROW = 76
NODE_HEIGHT = 46
MARGIN = 20


@dataclass(frozen=True)
class Box:
    """A node with its position.

    Attributes:
        kind: ``event``, ``action`` or ``side``.
        title: Its label.
        x: Left edge, in units of SVG.
        y: Upper edge, in units of SVG.
        count_text: Number of its occurrences as text; empty if the trace has no count.
        failed: Number of its failures; 0 if there are none.
        notes: Settings of the action in the plan, as text.
    """

    kind: str
    title: str
    x: float
    y: float
    count_text: str
    failed: int
    notes: str


@dataclass(frozen=True)
class Arrow:
    """An edge with its position.

    Attributes:
        path: Its path, in the syntax of SVG.
        x: Horizontal position of its count.
        y: Vertical position of its count.
        count_text: Number of events that took it, as text; empty if the trace has none.
    """

    path: str
    x: float
    y: float
    count_text: str


@dataclass(frozen=True)
class Drawing:
    """A graph with the positions of its nodes and edges.

    Attributes:
        name: Name of the agent.
        boxes: Its nodes.
        arrows: Its edges.
        width: Width in units of SVG.
        height: Height in units of SVG.
    """

    name: str
    boxes: list[Box]
    arrows: list[Arrow]
    width: float
    height: float


def draw_plan(plan: AgentPlan, counts: Counts, runs: int) -> Drawing:
    """Return the drawing of a plan.

    Args:
        plan: The plan.
        counts: Number of records by kind and name, and then by outcome.
        runs: Number of recorded runs of the agent.
    """
    return draw_flow(plan.name, flow_of(plan), counts, runs)


def draw_flow(name: str, flow: Flow, counts: Counts, runs: int) -> Drawing:
    """Lay out a graph of actions and events.

    Args:
        name: Name of the agent.
        flow: The graph.
        counts: Number of records by kind and name, and then by outcome.
        runs: Number of recorded runs of the agent.
    """
    layers = _layers(flow)
    places: dict[str, tuple[float, float]] = {}
    tallest = max((len(nodes) for nodes in layers), default=1)
    for column, layer in enumerate(layers):
        top = MARGIN + (tallest - len(layer)) * ROW / 2
        for row, node in enumerate(layer):
            places[node] = MARGIN + column * LAYER, top + row * ROW
    boxes = [_draw_box(node, *places[node.id], counts, runs) for node in flow.nodes.values()]
    arrows = [
        _draw_arrow(places[source], places[target], label)
        for source, target, label in _edge_counts(flow, counts, runs)
    ]
    width = 2 * MARGIN + (len(layers) - 1) * LAYER + NODE_WIDTH
    return Drawing(name, boxes, arrows, width, 2 * MARGIN + (tallest - 1) * ROW + NODE_HEIGHT)


def seen_flow(counts: Counts) -> Flow:
    """Return the graph of an agent without a plan: its recorded actions, each behind the input."""
    nodes = {INPUT: Node(INPUT, "event", InputEvent.__name__)}
    edges: list[tuple[str, str]] = []
    for kind, name in counts:
        if kind == "action":
            nodes[f"action:{name}"] = Node(f"action:{name}", "action", name)
            edges.append((INPUT, f"action:{name}"))
    return Flow(nodes, tuple(edges))


def _layers(flow: Flow) -> list[list[str]]:
    """Return the nodes in layers, by the length of the longest path to each from a node without predecessors.

    Edges that close a cycle are ignored.
    """
    following_nodes: dict[str, list[str]] = {node: [] for node in flow.nodes}
    for source, target in flow.edges:
        following_nodes[source].append(target)
    order: list[str] = []
    state: dict[str, int] = {}
    closing_edges: set[tuple[str, str]] = set()
    for start in flow.nodes:
        stack = [(start, iter(following_nodes[start]))] if start not in state else []
        state.setdefault(start, 1)
        while stack:
            node, successors = stack[-1]
            following = next(successors, None)
            if following is None:
                stack.pop()
                state[node] = 2
                order.append(node)
            elif following not in state:
                state[following] = 1
                stack.append((following, iter(following_nodes[following])))
            elif state[following] == 1:
                closing_edges.add((node, following))
    depth = dict.fromkeys(flow.nodes, 0)
    for node in reversed(order):
        for following in following_nodes[node]:
            if (node, following) not in closing_edges:
                depth[following] = max(depth[following], depth[node] + 1)
    layers: list[list[str]] = [[] for _ in range(max(depth.values(), default=0) + 1)]
    for node in flow.nodes:
        layers[depth[node]].append(node)
    return layers


def _edge_counts(flow: Flow, counts: Counts, runs: int) -> list[tuple[str, str, str]]:
    """Return source, target and count of each edge. The count is empty if an action has several triggers."""
    triggers: dict[str, int] = {}
    for _, target in flow.edges:
        triggers[target] = triggers.get(target, 0) + 1
    labelled_edges: list[tuple[str, str, str]] = []
    for source, target in flow.edges:
        number = 0
        if target.startswith("action:") and triggers[target] == 1:
            number = sum(counts.get(("action", target.partition(":")[2]), {}).values())
        elif target == DEAD_LETTERS and source.startswith("event:"):
            number = counts.get(("event", source.partition(":")[2]), {}).get("dead-lettered", 0)
        elif source.startswith("action:") and target.startswith("event:"):
            number = counts.get(("event", target.partition(":")[2]), {}).get("sent", 0)
        labelled_edges.append((source, target, f"{number:,}" if number else ""))
    return labelled_edges


def _draw_box(node: Node, x: float, y: float, counts: Counts, runs: int) -> Box:
    kind, _, name = node.id.partition(":")
    label = ""
    failed = 0
    if kind == "action":
        outcomes = counts.get(("action", name), {})
        failed = outcomes.get("failed", 0)
        total = sum(outcomes.values())
        label = f"{total:,} executed" if total else ""
    elif node.id == INPUT:
        label = f"{runs:,} runs" if runs else ""
    elif node.id == DEAD_LETTERS:
        number = sum(
            outcome_counts.get("dead-lettered", 0)
            for (what, _), outcome_counts in counts.items()
            if what in ("run", "event")
        )
        label = f"{number:,}" if number else ""
    return Box(node.kind, node.title, x, y, label, failed, "; ".join(node.notes))


def _draw_arrow(begin: tuple[float, float], end: tuple[float, float], label: str) -> Arrow:
    middle = NODE_HEIGHT / 2
    x1 = begin[0] + NODE_WIDTH
    y1 = begin[1] + middle
    x2 = end[0] - 6
    y2 = end[1] + middle
    if x2 > x1:
        bend = max((x2 - x1) / 2, 30)
        path = f"M{x1:g},{y1:g} C{x1 + bend:g},{y1:g} {x2 - bend:g},{y2:g} {x2:g},{y2:g}"
        return Arrow(path, (x1 + x2) / 2, (y1 + y2) / 2 - 6, label)
    # Back to an earlier layer: below the nodes.
    bottom = max(y1, y2) + ROW * 0.55
    path = f"M{x1:g},{y1:g} C{x1 + 60:g},{bottom:g} {x2 - 60:g},{bottom:g} {x2:g},{y2:g}"
    return Arrow(path, (x1 + x2) / 2, bottom - 8, label)
