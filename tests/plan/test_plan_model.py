"""The plan as data: JSON, fingerprint, format version, references, published schemas."""

from __future__ import annotations

import functools
import json
import pickle
import subprocess
import sys
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, Optional, TypeVar

import plan_shop
import pytest
from plan_cases import answer
from plan_shop import OrderPlaced, ShopAgent, shop
from pydantic import BaseModel, Field, ValidationError

from flink_agents import Agent, InputEvent, Prompt, ResourceDescriptor
from flink_agents.api.errors import FunctionReferenceError, PlanFormatError
from flink_agents.api.errors.base import code_line
from flink_agents.plan import AgentPlan, LoadedAgent, compile_agent
from flink_agents.plan.model import FORMAT_VERSION
from flink_agents.plan.references import FunctionRef, type_from_text, type_text
from tests import schemas
from tests.suite.tables import each_case

T = TypeVar("T")
GOLDEN = Path(__file__).with_name("golden_plan_v1.json")
FINGERPRINT = "be2ab3762146224dbe0821dd406aa82b00bd4611390d8174b00fdc7cee538f9f"


@pytest.fixture
def data() -> dict[str, Any]:
    """The golden plan as JSON values, to be changed."""
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


# -- format -----------------------------------------------------------------------------------


def test_the_golden_plan_still_loads_and_binds(data: dict[str, Any]) -> None:
    plan = AgentPlan.from_json(GOLDEN.read_bytes(), str(GOLDEN))
    assert json.loads(plan.to_json()) == data
    assert plan.fingerprint == FINGERPRINT
    assert [action.name for action in LoadedAgent(plan).actions] == ["read_order", "book", "approve", "thank"]


def test_the_code_of_the_golden_plan_still_gives_its_fingerprint() -> None:
    assert compile_agent(shop()).fingerprint == FINGERPRINT


@each_case("make", [shop, plan_shop.builder])
@each_case("indent", [None, 2])
def test_json_gives_an_equal_plan(make: Callable[[], Agent], indent: int | None) -> None:
    plan = compile_agent(make())
    again = AgentPlan.from_json(plan.to_json(indent))
    assert again == plan
    assert (again.to_json(), again.fingerprint) == (plan.to_json(), plan.fingerprint)
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_a_plan_is_frozen() -> None:
    plan = compile_agent(shop())
    with pytest.raises(ValidationError, match="frozen"):
        plan.name = "other"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValidationError, match="frozen"):
        plan.actions[0].name = "other"  # pyright: ignore[reportAttributeAccessIssue]


def newer_version(data: dict[str, Any]) -> None:
    data.update(format_version=FORMAT_VERSION + 1, later="?", actions=3)


def unknown_field(data: dict[str, Any]) -> None:
    data["later"] = 1


def unknown_field_of_an_action(data: dict[str, Any]) -> None:
    data["actions"][1]["later"] = 1


def unknown_field_of_a_prompt(data: dict[str, Any]) -> None:
    data["resources"][2]["prompt"]["messages"][0]["later"] = 1


def missing_field(data: dict[str, Any]) -> None:
    del data["actions"]


def wrong_kind(data: dict[str, Any]) -> None:
    data["actions"][0]["kind"] = "class"


def two_actions(data: dict[str, Any]) -> None:
    data["actions"].append(data["actions"][0])


def two_resources(data: dict[str, Any]) -> None:
    data["resources"].append(data["resources"][0])


def missing_event(data: dict[str, Any]) -> None:
    del data["events"][3]


def missing_resource(data: dict[str, Any]) -> None:
    del data["resources"][1]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (newer_version, "format_version: this package reads format_version 1"),
        (unknown_field, "later: Extra inputs are not permitted"),
        (unknown_field_of_an_action, "actions.1.later: Extra inputs are not permitted"),
        (unknown_field_of_a_prompt, "resources.2.prompt.messages.0.later: Extra inputs are not permitted"),
        (missing_field, "actions: Field required"),
        (wrong_kind, "actions.0.kind: Input should be 'instance', 'static' or 'function'"),
        (two_actions, "two actions have the name 'read_order'"),
        (two_resources, "two resources are the tool 'rate'"),
        (missing_event, "events has no class 'OrderPlaced', which triggers 'book'"),
        (missing_resource, "unknown tool 'double'"),
    ],
)
def test_what_is_no_plan_of_this_version(
    data: dict[str, Any], change: Callable[[dict[str, Any]], None], found: str
) -> None:
    change(data)
    with pytest.raises(PlanFormatError) as caught:
        AgentPlan.from_json(json.dumps(data), "old.json")
    assert str(caught.value).split("\n") == [
        "old.json: old.json is not an agent plan",
        "  expected: the format of version 1 (plan.schema.json)",
        f"  found: {found}",
        "  fix: write it with AgentPlan.to_json() of this version of the package",
        code_line("FA1009"),
    ]


@each_case("text", ["", "{", "[]", b"\xff"])
def test_what_is_no_json(text: str | bytes) -> None:
    with pytest.raises(PlanFormatError, match="the plan is not an agent plan"):
        AgentPlan.from_json(text)


# -- fingerprint ------------------------------------------------------------------------------


def agent(**changes: Any) -> Agent:
    built = Agent(name=changes.get("name", "a"))
    built.on_error = changes.get("on_error")
    for name in changes.get("order", ("one", "two")):
        options = {"limit": changes.get("limit", 1)} if name == "one" else {}
        triggers = changes.get("triggers", [InputEvent]) if name == "two" else [InputEvent]
        built.add_action(name, triggers, changes.get("function", answer), when=changes.get("when"), **options)
    text = changes.get("text", "hello")
    built.add_resource("hi", "prompt", Prompt.from_text(text))
    built.add_resource("c", "vector_store", ResourceDescriptor(clazz=changes.get("clazz", "m:C"), port=1))
    return built


def other_answer(event: Any, ctx: Any) -> OrderPlaced | None: ...


@each_case(
    "changes",
    [
        {"name": "b"},
        {"on_error": "ignore"},
        {"limit": 2},
        {"function": other_answer},
        {"when": plan_shop.is_large},
        {"triggers": [InputEvent, OrderPlaced], "function": other_answer},
        {"clazz": "m:D"},
        {"order": ("one",)},
    ],
)
def test_fingerprint_covers_what_recovery_depends_on(changes: dict[str, Any]) -> None:
    original_plan = compile_agent(agent())
    after = compile_agent(agent(**changes))
    assert original_plan.fingerprint != after.fingerprint
    assert original_plan.recovery_parts() != after.recovery_parts()


@each_case(
    "changes", [{}, {"order": ("two", "one")}, {"text": "good morning"}, {"triggers": ["_input_event"]}]
)
def test_fingerprint_leaves_out_what_may_change(changes: dict[str, Any]) -> None:
    assert compile_agent(agent(**changes)).fingerprint == compile_agent(agent()).fingerprint


def test_fingerprint_tells_a_trigger_by_name_from_one_by_class() -> None:
    def book(event: Any, ctx: Any) -> OrderPlaced | None: ...

    def built(trigger: Any) -> AgentPlan:
        return compile_agent(Agent(name="a").add_action("book", [InputEvent, trigger], book))

    assert built(OrderPlaced).fingerprint != built("OrderPlaced").fingerprint


# -- references -------------------------------------------------------------------------------


@each_case(
    ("target", "text"),
    [
        (ShopAgent.book, "plan_shop:ShopAgent.book"),
        (ShopAgent, "plan_shop:ShopAgent"),
        (functools.partial(answer), "plan_cases:<partial>.answer"),
        (shop().book, "plan_shop:<bound>.ShopAgent.book"),
        (len, "builtins:len"),
        (functools.partial, "functools:partial"),
    ],
)
def test_reference_of(target: Any, text: str) -> None:
    reference = FunctionRef.from_object(target)
    assert str(reference) == text
    assert FunctionRef.parse(text) == reference
    if reference.importable:
        assert reference.resolve() is target


@each_case(
    ("text", "found", "fix"),
    [
        ("plan_shop", "'plan_shop'", "put a colon"),
        (":x", "':x'", "put a colon"),
        ("plan_shop:", "'plan_shop:'", "put a colon"),
        ("plan_shop:ShopAgnt", "no 'ShopAgnt' in plan_shop", "did you mean 'ShopAgent'?"),
        ("plan_shop:ShopAgent.boook", "no 'boook' in ShopAgent", "did you mean 'book'?"),
        ("plan_shop:zzzz", "no 'zzzz' in plan_shop", "restore the name"),
        ("no_such_module:x", "ModuleNotFoundError: No module named 'no_such_module'", "PYTHONPATH"),
        ("plan_shop:<lambda>", "<lambda>", "define it with a name"),
    ],
)
def test_reference_that_leads_nowhere(text: str, found: str, fix: str) -> None:
    with pytest.raises(FunctionReferenceError) as caught:
        FunctionRef.parse(text).resolve()
    assert caught.value.found == found
    assert caught.value.fix and fix in caught.value.fix


@each_case(
    ("kind", "text"),
    [
        (int, "int"),
        (dict, "dict"),
        (None, "None"),
        (Any, "Any"),
        (OrderPlaced, "plan_shop:OrderPlaced"),
        (list[int], "list[int]"),
        (list[OrderPlaced], "list[plan_shop:OrderPlaced]"),
        (dict[str, list[OrderPlaced | None]], "dict[str, list[plan_shop:OrderPlaced | None]]"),
        (tuple[int, ...], "tuple[int, ...]"),
        (int | None, "int | None"),
        (Optional[int], "Union[int, None]"),  # noqa: UP045
        (Literal["a, b", 1], "Literal['a, b', 1]"),
        (typing.List[int], "typing:List[int]"),  # noqa: UP006
        (Mapping[str, int], "collections.abc:Mapping[str, int]"),
    ],
)
def test_types_as_text(kind: Any, text: str) -> None:
    assert type_text(kind) == text
    assert type_from_text(text) == kind


class Wrapped(BaseModel, Generic[T]):
    item: T


@each_case(
    "kind", [Wrapped[int], Wrapped[OrderPlaced], Wrapped[list[OrderPlaced | None]], Wrapped[Wrapped[str]]]
)
def test_a_reference_to_a_parametrized_model_leads_to_it(kind: Any) -> None:
    reference = FunctionRef.from_object(kind)
    assert reference.module == __name__
    assert ("OrderPlaced" in str(reference)) == ("plan_shop:OrderPlaced" in str(reference))
    assert FunctionRef.parse(str(reference)).resolve() is kind


@each_case("kind", [Annotated[int, Field(gt=0)], Callable[[int], str], TypeVar("T"), list[Annotated[int, 1]]])
def test_types_that_are_no_class_have_a_text_only(kind: Any) -> None:
    with pytest.raises(FunctionReferenceError, match="cannot be read from a plan"):
        type_from_text(type_text(kind))


# -- schemas ----------------------------------------------------------------------------------


@each_case("name", ["agents.schema.json", "plan.schema.json"])
def test_published_schemas_are_those_of_the_models(name: str) -> None:
    published = (schemas.FOLDER / name).read_text(encoding="utf-8")
    assert published == schemas.schemas()[name], "run python -m tests.schemas"


def test_schemas_are_written_where_they_are_published(tmp_path: Path) -> None:
    names = [path.name for path in schemas.write(tmp_path)]
    assert names == ["agents.schema.json", "plan.schema.json"]
    assert sorted(path.name for path in schemas.FOLDER.glob("*.json")) == names


def test_schema_module_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.schemas", str(tmp_path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["agents.schema.json", "plan.schema.json"]
    assert [(tmp_path / name).read_text() for name in printed.split()] == list(schemas.schemas().values())


def test_schemas_describe_every_field() -> None:
    agents = json.loads(schemas.schemas()["agents.schema.json"])
    assert agents["title"] == "Agents in YAML"
    entry = agents["$defs"]["ActionEntry"]
    assert entry["required"] == ["name", "triggers", "function"]
    assert entry["additionalProperties"] is False
    assert agents["$defs"]["AgentEntry"]["properties"].keys() >= {"name", "class", "configuration"}
    plan = json.loads(schemas.schemas()["plan.schema.json"])
    assert plan["properties"].keys() == AgentPlan.model_fields.keys()
