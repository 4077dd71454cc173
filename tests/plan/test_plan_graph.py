"""Plans as text and as Mermaid graphs: both are well-formed, and every edge is drawn."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

from plan_cases import answer
from plan_shop import shop

from flink_agents import (
    Agent,
    ChatModel,
    DurableCallable,
    Event,
    InputEvent,
    NamedEvent,
    OutputEvent,
    Prompt,
    ResourceDescriptor,
    RunnerContext,
    action,
    chat_model,
    client,
)
from flink_agents.plan import ActionPlan, AgentPlan, compile_agent
from flink_agents.plan.references import FunctionRef
from flink_agents.plan.show import DEAD_LETTERS, INPUT, OUTPUT, flow_of, to_mermaid, to_text
from tests.suite.tables import each_case


class Base(Event):
    pass


class Sub(Base):
    pass


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
        "  read_order  InputEvent -> BigOrderPlaced, OrderPlaced, dead letters",
        "  book        OrderPlaced -> OrderPaid, OutputEvent, dead letters "
        "(async; when lambda event: event.total > 0)",
        "  approve     OrderPlaced, BigOrderPlaced -> OutputEvent (when is_large; on error fail)",
        "  thank       OrderPaid -> side output notes, dead letters (async)",
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


@each_case("name", PLANS)
def test_text_is_printable(name: str) -> None:
    text = to_text(PLANS[name])
    assert all(character.isprintable() or character == "\n" for character in text)
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


def test_side_outputs_and_dead_letters_are_edges() -> None:
    """Shown are the tags that the code names, also in helpers, and what the policies send away."""

    def helper(order: Any, ctx: RunnerContext) -> None:
        ctx.emit_to("late", order)

    def start(event: Any, ctx: RunnerContext) -> Sub:
        ctx.emit_to("notes", event)
        helper(event, ctx)
        return Sub()

    class Writer(Agent):
        side_outputs = {"late": str, "notes": str}
        on_unhandled = "dead-letter"

    agent = Writer()
    agent.add_action("start", InputEvent, start, on_error="dead-letter")
    plan = compile_agent(agent)
    assert set(flow_of(plan).edges) == {
        (INPUT, "action:start"),
        ("action:start", "event:Sub"),
        ("action:start", "side:late"),
        ("action:start", "side:notes"),
        ("action:start", DEAD_LETTERS),
        ("event:Sub", DEAD_LETTERS),
    }
    assert '[/"side output notes"/]' in to_mermaid(plan)
    assert '[/"dead letters"/]' in to_mermaid(plan)


def test_the_policy_of_an_action_goes_before_that_of_its_agent() -> None:
    def to_dead_letters(plan: AgentPlan) -> set[str]:
        return {source for source, target in flow_of(plan).edges if target == DEAD_LETTERS}

    shop_plan = PLANS["shop"]
    failing = {f"action:{plan_action.name}" for plan_action in shop_plan.actions} - {"action:approve"}
    assert to_dead_letters(shop_plan) == failing
    assert to_dead_letters(PLANS["fan"]) == set()


async def fetch(page: str, http: Any = None, db: Any = None) -> str:
    return page


def charge(order: str) -> str:
    return order


FETCH = DurableCallable(fetch, client="http")


class Uses(Agent):
    """Makes durable calls in several ways, with clients."""

    side_outputs = {"notes": str}

    @client
    def http(self) -> Iterator[str]:
        yield "session"

    @client
    def db(self) -> Iterator[str]:
        yield "connection"

    @action(InputEvent, on_error="dead-letter")
    async def act(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        ctx.emit_to("notes", "a")
        await ctx.durable_execute_async(FETCH, "a")
        await ctx.durable_execute_async(DurableCallable(fetch, client=("db",)), "a")
        await self.helper(ctx)
        return OutputEvent(output=await ctx.chat("writer", "hello"))

    @chat_model
    def writer(self) -> ResourceDescriptor:
        return ChatModel("test")

    async def helper(self, ctx: RunnerContext) -> None:
        await ctx.durable_execute_async(charge, "a")
        await ctx.durable_execute_async(str.upper, "a")
        await ctx.client("db")

    @action(InputEvent)
    def quiet(self, event: Any, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=charge("a"))


def test_plan_says_what_is_called_durably_and_with_which_clients() -> None:
    plan = AgentPlan.from_json(compile_agent(Uses).to_json())
    uses_by_action = {
        plan_action.name: (plan_action.calls, plan_action.clients) for plan_action in plan.actions
    }
    assert uses_by_action["act"] == (("charge", "fetch", "model writer", "upper"), ("db", "http"))
    assert uses_by_action["quiet"] == ((), ())


def test_text_and_graph_mark_calls_clients_side_outputs_and_dead_letters() -> None:
    plan = compile_agent(Uses)
    (line,) = [text_line for text_line in to_text(plan).split("\n") if text_line.startswith("  act ")]
    assert line.split(" -> ")[1] == (
        "OutputEvent, side output notes, dead letters "
        "(async; durable: charge, fetch, model writer, upper; client db, http; on error dead-letter)"
    )
    graph = to_mermaid(plan).split("\n")
    (node,) = [graph_line.split("[")[0].strip() for graph_line in graph if '["act<br/>' in graph_line]
    clients = {graph_line.split("[")[0].strip() for graph_line in graph if '["client: ' in graph_line}
    assert {graph_line.strip() for graph_line in graph if "-.->" in graph_line} >= {
        f"{node} -.-> {client_node}" for client_node in clients
    }
    assert len(clients) == 2


def test_what_is_called_is_no_part_of_the_fingerprint() -> None:
    plan = compile_agent(Uses)
    quiet = [plan_action.model_copy(update={"calls": (), "clients": ()}) for plan_action in plan.actions]
    assert plan.fingerprint == plan.model_copy(update={"actions": tuple(quiet)}).fingerprint


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


@each_case("name", PLANS)
def test_mermaid_lines_are_well_formed(name: str) -> None:
    text = r'\["[\w .,:()#;<>/-]*"\]'
    line = re.compile(
        rf"    n\d+({text}|\({text}\)|\[/{text[2:-2]}/\])|    n\d+ --> n\d+"
        rf"|    subgraph resources|    end|        r\d+({text}| -\.-> r\d+)"
        r"|    n\d+ -\.-> r\d+|    classDef ends \S+|    class n\d+(,n\d+)* ends"
    )
    first, *remaining_lines = to_mermaid(PLANS[name]).split("\n")
    assert first == "flowchart LR"
    assert [mermaid_line for mermaid_line in remaining_lines if not line.fullmatch(mermaid_line)] == []
