"""Pictures of plans: the text, the Mermaid graph and the SVG, which is well-formed and readable."""

from __future__ import annotations

import itertools
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from plan_cases import answer
from plan_shop import shop

from flink_agents import Agent, Event, InputEvent, NamedEvent, OutputEvent, Prompt
from flink_agents.plan import ActionPlan, AgentPlan, compile_agent
from flink_agents.plan.references import FunctionRef
from flink_agents.plan.show import to_mermaid, to_svg, to_text
from flink_agents.plan.show.flow import INPUT, OUTPUT, flow_of
from flink_agents.plan.show.layout import LAYER_GAP, NODE_GAP, lay_out


class Base(Event):
    pass


class Sub(Base):
    pass


SVG = "{http://www.w3.org/2000/svg}"


def step(name: str, takes: str, *emits: str) -> ActionPlan:
    function = FunctionRef(module="m", qualname=name)
    return ActionPlan(
        name=name, trigger_types=(takes,), function=function, kind="function", emits=tuple(emits)
    )


def plan_of(*actions: ActionPlan, name: str = "a") -> AgentPlan:
    return AgentPlan(name=name, actions=actions)


def chain(length: int, back: int = 0) -> AgentPlan:
    """Actions one behind the other, each of which may answer, or start ``back`` steps before again."""
    events = ["_input_event", *(f"E{number}" for number in range(1, length)), "_output_event"]
    return plan_of(
        *(
            step(
                f"a{number}",
                takes,
                gives,
                "_output_event",
                *([events[max(1, number - back)]] if back else []),
            )
            for number, (takes, gives) in enumerate(itertools.pairwise(events))
        )
    )


def fan(width: int) -> AgentPlan:
    return plan_of(*(step(f"a{number}", "_input_event", "_output_event") for number in range(width)))


def tangle(width: int) -> AgentPlan:
    """Each of some actions emits what each of the others takes."""
    names = [f"E{number}" for number in range(width)]
    return plan_of(
        step("start", "_input_event", *names), *(step(name.lower(), name, *names) for name in names)
    )


PLANS = {
    "shop": compile_agent(shop()),
    "nothing": plan_of(),
    "one": fan(1),
    "silent": plan_of(step("a", "_input_event")),
    "self": plan_of(step("a", "_input_event", "E"), step("b", "E", "E")),
    "pair": plan_of(step("a", "_input_event", "E"), step("b", "E", "F"), step("c", "F", "E")),
    "island": plan_of(step("a", "_input_event", "_output_event"), step("b", "E", "F")),
    "cycle": chain(6, back=3),
    "fan": fan(60),
    "chain": chain(40),
    "tangle": tangle(8),
    "long names": plan_of(step("n" * 300, "_input_event", "漢" * 100), name="x" * 500),
    "markup": plan_of(step("<&\"'>\n\x00\x1b[31m", "_input_event", "a&lt;\u202e"), name="<b>&\x07"),
}


# -- text -------------------------------------------------------------------------------------


def test_text() -> None:
    plan = compile_agent(shop())
    assert to_text(plan).split("\n") == [
        "agent ShopAgent",
        "  class        plan_shop:ShopAgent",
        f"  fingerprint  {plan.fingerprint}",
        "  on error     dead-letter",
        "  on unhandled ignore",
        "  output type  plan_shop:Receipt",
        "",
        "configuration",
        "  limits  {'credit': 500.0, 'currency': 'EUR'}",
        "",
        "actions",
        "  read_order  InputEvent -> BigOrderPlaced, OrderPlaced",
        "  book        OrderPlaced -> OrderPaid, OutputEvent (async; when lambda event: event.total > 0)",
        "  approve     OrderPlaced, BigOrderPlaced -> OutputEvent (when is_large; on error fail)",
        "  thank       OrderPaid -> nothing (async)",
        "",
        "resources",
        "  tool rate                    (amount, currency) The amount in the currency of the shop.",
        "  tool double                  (amount) Twice the amount.",
        "  prompt greeting              customer, total",
        "  chat_model_connection local  shop.models:Connection",
        "  chat_model clerk             shop.models:Setup -> chat_model_connection local, "
        "prompt greeting, tool rate, tool double",
        "",
        "side outputs",
        "  late   plan_shop:Receipt",
        "  notes  str",
    ]


def test_text_of_the_smallest_agent_has_no_empty_sections() -> None:
    text = to_text(compile_agent(Agent(name="a").add_action("x", InputEvent, answer)))
    assert re.fullmatch(
        r"agent a\n  fingerprint  [0-9a-f]{64}\n\nactions\n  x  InputEvent -> OutputEvent", text
    )


@pytest.mark.parametrize("name", PLANS)
def test_text_is_printable(name: str) -> None:
    text = to_text(PLANS[name])
    assert all(one.isprintable() or one == "\n" for one in text)
    assert not re.search(r" $", text, re.MULTILINE)


# -- flow -------------------------------------------------------------------------------------


def test_edges_follow_classes_names_and_subclasses() -> None:
    def start(event: Any, ctx: Any) -> Sub | NamedEvent:
        return NamedEvent(type="named")

    def end(event: Any, ctx: Any) -> OutputEvent: ...

    agent = Agent(name="a").add_action("start", InputEvent, start)
    agent.add_action("base", Base, end).add_action("sub", "Sub", end).add_action("named", "named", end)
    agent.add_action("all", Event, end)
    assert set(flow_of(compile_agent(agent)).edges) == {
        (INPUT, "action:start"),
        (INPUT, "action:all"),
        ("action:start", "event:Sub"),
        ("action:start", "event:named"),
        ("event:Sub", "action:base"),
        ("event:Sub", "action:sub"),
        ("event:Sub", "action:all"),
        ("event:named", "action:named"),
        ("event:named", "action:all"),
        *((f"action:{name}", OUTPUT) for name in ("base", "sub", "named", "all")),
    }


def test_a_trigger_that_nothing_is_seen_to_emit_stands_for_itself() -> None:
    assert set(flow_of(PLANS["island"]).edges) >= {("event:E", "action:b"), ("action:b", "event:F")}


# -- mermaid ----------------------------------------------------------------------------------


def test_mermaid() -> None:
    agent = Agent(name="a").add_action("x", InputEvent, answer, when=lambda event: event.input > 1)
    agent.add_resource("hi", "prompt", Prompt.from_text("hi"))
    assert to_mermaid(compile_agent(agent)).split("\n") == [
        "flowchart LR",
        '    n0(["InputEvent"])',
        '    n1["x<br/>when lambda event: event.input #62; 1"]',
        '    n2(["OutputEvent"])',
        "    n0 --> n1",
        "    n1 --> n2",
        "    subgraph resources",
        '        r0["prompt: hi"]',
        "    end",
        "    classDef ends fill:#ecfdf5,stroke:#34d399",
        "    class n0,n2 ends",
    ]


def test_mermaid_shows_references() -> None:
    lines = to_mermaid(compile_agent(shop())).split("\n")
    assert [line.strip() for line in lines if "-.->" in line] == [
        f"r4 -.-> r{number}" for number in (3, 2, 0, 1)
    ]


@pytest.mark.parametrize("name", PLANS)
def test_mermaid_lines_are_well_formed(name: str) -> None:
    text = r'\["[\w .,:()#;<>/-]*"\]'
    line = re.compile(
        rf"    n\d+({text}|\({text}\))|    n\d+ --> n\d+|    subgraph resources|    end"
        rf"|        r\d+({text}| -\.-> r\d+)|    classDef ends \S+|    class n\d+(,n\d+)* ends"
    )
    first, *rest = to_mermaid(PLANS[name]).split("\n")
    assert first == "flowchart LR"
    assert [one for one in rest if not line.fullmatch(one)] == []


# -- svg --------------------------------------------------------------------------------------


def rectangles(svg: str) -> list[tuple[float, float, float, float]]:
    """Left, top, right and bottom of every node and resource, in the coordinates of the picture."""
    root = ElementTree.fromstring(svg)
    found = []
    for group in root.iter(f"{SVG}g"):
        shift = re.search(r"translate\((\S+) (\S+)\)", group.get("transform", ""))
        dx, dy = (float(shift[1]), float(shift[2])) if shift else (0.0, 0.0)
        groups = group.findall(f"{SVG}g") if shift else [group] if group.get("class") == "resource" else []
        for one in groups:
            rect = one.find(f"{SVG}rect")
            assert rect is not None
            x, y, width, height = (float(rect.get(key, "")) for key in ("x", "y", "width", "height"))
            found.append((x + dx, y + dy, x + dx + width, y + dy + height))
    return found


def overlapping(boxes: list[tuple[float, float, float, float]]) -> list[Any]:
    return [
        (a, b)
        for a, b in itertools.combinations(boxes, 2)
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
    ]


@pytest.mark.parametrize("name", PLANS)
def test_svg_is_well_formed_and_nothing_overlaps_or_sticks_out(name: str) -> None:
    plan = PLANS[name]
    svg = to_svg(plan)
    boxes = rectangles(svg)
    assert len(boxes) == len(flow_of(plan).nodes) + len(plan.resources)
    assert overlapping(boxes) == []
    left, top, width, height = map(float, ElementTree.fromstring(svg).get("viewBox", "").split())
    assert all(left <= a and top <= b and c <= left + width and d <= top + height for a, b, c, d in boxes)


@pytest.mark.parametrize("name", PLANS)
def test_svg_has_a_line_for_each_edge_and_a_title_for_each_node(name: str) -> None:
    flow = flow_of(PLANS[name])
    root = ElementTree.fromstring(to_svg(PLANS[name]))
    edges = [one for one in root.iter(f"{SVG}path") if one.get("class", "").startswith("edge")]
    assert len(edges) == len(flow.edges)
    events = [one for one in root.iter(f"{SVG}g") if one.get("class", "").startswith("event")]
    assert len(events) == sum(node.kind == "event" for node in flow.nodes.values())


def test_svg_marks_edges_that_lead_back() -> None:
    assert to_svg(PLANS["chain"]).count('class="edge back"') == 0
    assert to_svg(PLANS["pair"]).count('class="edge back"') == 1


# -- layout -----------------------------------------------------------------------------------


def test_layout_puts_inputs_first_and_outputs_last() -> None:
    for name in ("shop", "cycle", "chain", "fan"):
        flow = flow_of(PLANS[name])
        layout = lay_out(dict.fromkeys(flow.nodes, (10.0, 10.0)), flow.edges, [INPUT], [OUTPUT])
        xs = {node: x for node, (x, _) in layout.centers.items()}
        assert xs[INPUT] == min(xs.values())
        assert xs[OUTPUT] == max(xs.values())
        assert all(xs[a] < xs[b] for a, b in flow.edges if (a, b) not in layout.backward)


def test_layout_of_two_nodes_is_exact() -> None:
    layout = lay_out({"a": (10.0, 20.0), "b": (30.0, 40.0)}, [("a", "b"), ("a", "b")])
    assert layout.centers == {"a": (5.0, 20.0), "b": (10 + LAYER_GAP + 15, 20.0)}
    assert layout.routes == {("a", "b"): [(10.0, 20.0), (10 + LAYER_GAP, 20.0)]}
    assert (layout.width, layout.height, layout.backward) == (40 + LAYER_GAP, 40.0, set())


def test_layout_keeps_gaps_in_a_layer() -> None:
    layout = lay_out(dict.fromkeys("abc", (10.0, 10.0)), [])
    assert sorted(y for _, y in layout.centers.values()) == [5.0, 15 + NODE_GAP, 25 + 2 * NODE_GAP]


def test_layout_avoids_crossings_where_it_can() -> None:
    edges = [("a", "x"), ("a", "z"), ("b", "y"), ("b", "w")]
    centers = lay_out(dict.fromkeys("abwxyz", (10.0, 10.0)), edges).centers
    order = sorted("wxyz", key=lambda one: centers[one][1])
    assert {frozenset(order[:2]), frozenset(order[2:])} == {frozenset("xz"), frozenset("wy")}


def test_layout_of_nothing() -> None:
    layout = lay_out({}, [])
    assert (layout.centers, layout.routes, layout.width, layout.height) == ({}, {}, 0.0, 0.0)
