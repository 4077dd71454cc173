"""Places the nodes of a directed graph in layers from left to right.

The steps are those of Sugiyama's method: edges that close a circle are turned round, layers
follow the longest path, edges over several layers get a bend in each, bends and nodes of a
layer are ordered by the middle of their neighbours, and get coordinates near to them.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Point = tuple[float, float]
Edge = tuple[str, str]

LAYER_GAP = 64.0
NODE_GAP = 22.0
_PORT_GAP = 10.0
_SWEEPS = 12


@dataclass(frozen=True)
class Layout:
    """Where nodes and edges are.

    Attributes:
        centers: Middle of each node.
        routes: Points of each edge in its own direction, from border to border.
        backward: Edges that lead from right to left.
        width: Width of the whole.
        height: Height of the whole.
    """

    centers: dict[str, Point]
    routes: dict[Edge, list[Point]]
    backward: set[Edge]
    width: float
    height: float


def lay_out(
    sizes: Mapping[str, tuple[float, float]],
    edges: Iterable[Edge],
    first: Iterable[str] = (),
    last: Iterable[str] = (),
) -> Layout:
    """Place nodes.

    Args:
        sizes: Width and height by node, in the order that decides between equals.
        edges: From where to where; both are nodes.
        first: Nodes for the leftmost layer.
        last: Nodes for the rightmost layer.
    """
    edges = list(dict.fromkeys(edges))
    backward = _backward(sizes, edges, list(first))
    forward = {(b, a) if (a, b) in backward else (a, b): None for a, b in edges}
    layer = _layers(sizes, list(forward), set(first), set(last))
    boxes = dict(sizes)
    chains = {edge: _chain(edge, layer, boxes) for edge in forward}
    links = [link for chain in chains.values() for link in zip(chain, chain[1:], strict=False)]
    rows = _order(boxes, layer, links)
    y = _heights(rows, boxes, links)
    x, width = _columns(rows, boxes)
    top = min((y[one] - boxes[one][1] / 2 for one in boxes), default=0.0)
    centers = {one: (x[layer[one]], y[one] - top) for one in boxes}
    height = max((centers[one][1] + boxes[one][1] / 2 for one in boxes), default=0.0)
    ports = _ports(centers, boxes, chains)
    routes: dict[Edge, list[Point]] = {}
    for edge in edges:
        turned = edge in backward
        key = (edge[1], edge[0]) if turned else edge
        points = [ports[key, 0], *(centers[bend] for bend in chains[key][1:-1]), ports[key, 1]]
        if turned and (key in edges):
            # Both directions between two nodes: one line each, side by side.
            points = [(px, py + _PORT_GAP) for px, py in points]
        routes[edge] = points[::-1] if turned else points
    return Layout({one: centers[one] for one in sizes}, routes, backward, width, height)


def _backward(nodes: Iterable[str], edges: list[Edge], first: list[str]) -> set[Edge]:
    """Edges that a walk from the first nodes finds to close a circle."""
    following: dict[str, list[str]] = {}
    for source, target in edges:
        following.setdefault(source, []).append(target)
    found: set[Edge] = set()
    state: dict[str, bool] = {}
    for start in (*first, *nodes):
        if start in state:
            continue
        state[start] = True
        stack = [(start, iter(following.get(start, ())))]
        while stack:
            node, rest = stack[-1]
            target = next(rest, None)
            if target is None:
                state[node] = False
                stack.pop()
            elif target not in state:
                state[target] = True
                stack.append((target, iter(following.get(target, ()))))
            elif state[target]:
                found.add((node, target))
    return found


def _layers(nodes: Iterable[str], edges: list[Edge], first: set[str], last: set[str]) -> dict[str, int]:
    """The length of the longest path to each node."""
    layer = dict.fromkeys(nodes, 0)
    for _ in range(len(layer)):
        changed = False
        for source, target in edges:
            if layer[target] <= layer[source]:
                layer[target] = layer[source] + 1
                changed = True
        if not changed:
            break
    # A node without predecessors stands directly before what it leads to.
    targets = {target for _, target in edges}
    for node in layer:
        behind = [layer[target] for source, target in edges if source == node]
        if node not in targets and node not in first and behind:
            layer[node] = min(behind) - 1
    end = max(layer.values(), default=0)
    layer.update({node: end for node in last if node in layer})
    return layer


def _chain(edge: Edge, layer: dict[str, int], boxes: dict[str, tuple[float, float]]) -> list[str]:
    """The nodes of an edge with a bend in each layer between them."""
    source, target = edge
    bends = [f"\0{source}\0{target}\0{number}" for number in range(layer[source] + 1, layer[target])]
    for number, bend in enumerate(bends, layer[source] + 1):
        layer[bend] = number
        boxes[bend] = (0.0, 0.0)
    return [source, *bends, target]


def _order(boxes: Iterable[str], layer: Mapping[str, int], links: list[Edge]) -> list[list[str]]:
    """The nodes of each layer from top to bottom, with few crossings."""
    rows: list[list[str]] = [[] for _ in range(max(layer.values(), default=-1) + 1)]
    for node in boxes:
        rows[layer[node]].append(node)
    before, after = _neighbours(links)
    place = {one: index for row in rows for index, one in enumerate(row)}
    best, fewest = [list(row) for row in rows], _crossings(rows, after)
    for sweep in range(_SWEEPS):
        forwards = sweep % 2 == 0
        near = before if forwards else after
        for row in rows if forwards else reversed(rows):
            row.sort(key=lambda one, near=near: _mean(one, place, near))
            place.update({one: index for index, one in enumerate(row)})
        crossings = _crossings(rows, after)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    return best


def _neighbours(links: list[Edge]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    before: dict[str, list[str]] = {}
    after: dict[str, list[str]] = {}
    for source, target in links:
        before.setdefault(target, []).append(source)
        after.setdefault(source, []).append(target)
    return before, after


def _mean(node: str, place: Mapping[str, float], near: Mapping[str, list[str]]) -> float:
    places = [place[one] for one in near.get(node, ())]
    return sum(places) / len(places) if places else place[node]


def _crossings(rows: list[list[str]], after: Mapping[str, list[str]]) -> int:
    count = 0
    for row, following in zip(rows, rows[1:], strict=False):
        place = {one: index for index, one in enumerate(following)}
        above: list[int] = []
        for one in row:
            ends = [place[target] for target in after.get(one, ()) if target in place]
            count += sum(len(above) - bisect_right(above, end) for end in ends)
            for end in ends:
                insort(above, end)
    return count


def _heights(
    rows: list[list[str]], boxes: Mapping[str, tuple[float, float]], links: list[Edge]
) -> dict[str, float]:
    """The vertical middle of each node: near its neighbours, with gaps between nodes."""
    y: dict[str, float] = {}
    for row in rows:
        _spread(row, dict.fromkeys(row, 0.0), boxes, y)
    before, after = _neighbours(links)
    for sweep in range(_SWEEPS):
        forwards = sweep % 2 == 0
        for row in rows if forwards else reversed(rows):
            near = before if forwards else after
            _spread(row, {one: _mean(one, y, near) for one in row}, boxes, y)
    return y


def _spread(
    row: list[str], wanted: Mapping[str, float], boxes: Mapping[str, tuple[float, float]], y: dict[str, float]
) -> None:
    """Give the nodes of ``row`` the heights that are wanted, as far as order and gaps allow.

    Runs of nodes that press against each other move together to the mean of what they want.
    """
    blocks: list[tuple[list[str], list[float], float]] = []
    for node in row:
        members, offsets, middle = [node], [0.0], wanted[node]
        while blocks:
            above, shifts, place = blocks[-1]
            distance = (boxes[above[-1]][1] + boxes[members[0]][1]) / 2 + NODE_GAP
            if place + shifts[-1] + distance <= middle + offsets[0]:
                break
            blocks.pop()
            start = shifts[-1] + distance - offsets[0]
            members, offsets = above + members, shifts + [start + offset for offset in offsets]
            ideal = [wanted[one] - offset for one, offset in zip(members, offsets, strict=True)]
            middle = sum(ideal) / len(ideal)
        blocks.append((members, offsets, middle))
    for members, offsets, middle in blocks:
        y.update({one: middle + offset for one, offset in zip(members, offsets, strict=True)})


def _columns(rows: list[list[str]], boxes: Mapping[str, tuple[float, float]]) -> tuple[list[float], float]:
    """The horizontal middle of each layer, and the width of all."""
    middles: list[float] = []
    left = 0.0
    for row in rows:
        width = max((boxes[one][0] for one in row), default=0.0)
        middles.append(left + width / 2)
        left += width + LAYER_GAP
    return middles, max(0.0, left - LAYER_GAP)


def _ports(
    centers: Mapping[str, Point],
    boxes: Mapping[str, tuple[float, float]],
    chains: Mapping[Edge, list[str]],
) -> dict[tuple[Edge, int], Point]:
    """Where each edge leaves (0) and enters (1) a node: spread over its side, without crossings."""
    sides: dict[tuple[str, int], list[tuple[float, Edge]]] = {}
    for edge, chain in chains.items():
        sides.setdefault((edge[0], 0), []).append((centers[chain[1]][1], edge))
        sides.setdefault((edge[1], 1), []).append((centers[chain[-2]][1], edge))
    found: dict[tuple[Edge, int], Point] = {}
    for (node, end), ends in sides.items():
        (x, y), (width, height) = centers[node], boxes[node]
        ends.sort(key=lambda one: one[0])
        gap = min(_PORT_GAP, (height - 10) / len(ends))
        for index, (_, edge) in enumerate(ends):
            side = x + width / 2 if end == 0 else x - width / 2
            found[edge, end] = (side, y + (index - (len(ends) - 1) / 2) * gap)
    return found
