"""Arguments in agents.yaml that JSON does not have: an annotation converts them, or an error names them."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from yaml_arguments import TYPES

from flink_agents.api.errors import AgentConfigurationError, AgentsError
from flink_agents.plan import compile_agent, load_yaml
from flink_agents.testing import OperatorHarness
from tests.suite.tables import each_case

DAY = date(2024, 5, 1)
NOON = datetime(2024, 5, 1, 12)

CONVERTED: dict[tuple[str, str], Any] = {
    ("date", "2024-05-01"): DAY,
    ("maybe_date", "2024-05-01"): DAY,
    ("maybe_date", "~"): None,
    ("dates", "[2024-05-01]"): [DAY],
    ("by_name", "{first: 2024-05-01}"): {"first": DAY},
    ("by_name", "{off: 2024-05-01, yes: 2024-05-02}"): {"off": DAY, "yes": date(2024, 5, 2)},
    ("by_date", "{2024-05-01: 1}"): {DAY: 1},
    ("datetime", "2024-05-01"): datetime(2024, 5, 1),
    ("datetime", "2024-05-01 12:00:00"): NOON,
    ("datetime", "2024-05-01T12:00:00Z"): NOON.replace(tzinfo=UTC),
    ("datetime", "2024-05-01T12:00:00.5+02:00"): datetime(
        2024, 5, 1, 12, 0, 0, 500_000, timezone(timedelta(hours=2))
    ),
    ("datetime", "2024-5-1 12:00:00 -5"): NOON.replace(tzinfo=timezone(timedelta(hours=-5))),
    ("datetime", "2024-05-01 12:00:00 +05:30"): NOON.replace(tzinfo=timezone(timedelta(hours=5.5))),
    ("datetime", "2024-05-01T12:00:00-05"): NOON.replace(tzinfo=timezone(timedelta(hours=-5))),
    ("datetime", "2024-05-01 12:00:00 Z"): NOON.replace(tzinfo=UTC),
    ("time", "12:30"): time(12, 30),
    ("time", "12:30:45.5"): time(12, 30, 45, 500_000),
    ("timedelta", "12:30:00"): timedelta(hours=12, minutes=30),
    ("str", "2024-05-01"): "2024-05-01",
    ("str", "2024-05-01 12:00:00"): "2024-05-01 12:00:00",
    ("str", "12:30"): "12:30",
    ("str", "!!binary aGk="): "hi",
    ("texts", "[2024-05-01, a]"): ["2024-05-01", "a"],
    ("texts", "!!set {b, a}"): ["b", "a"],
    ("set_of_texts", "!!set {b, a}"): {"a", "b"},
    ("set_of_texts", "!!set {2024-05-01}"): {"2024-05-01"},
    ("bytes", "!!binary aGk="): b"hi",
    ("json", "{day: 2024-05-01, sizes: [1, 2.5]}"): {"day": "2024-05-01", "sizes": [1, 2.5]},
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def file_with(kind: str, value: str) -> Path:
    path = Path("agents.yaml")
    lines = [
        "agents:",
        "  - name: A",
        f"    class: yaml_arguments:Keeping_{kind}",
        "    configuration:",
        f"      value: {value}",
    ]
    path.write_text("\n".join(lines), "utf-8")
    return path


@each_case(("argument", "expected"), CONVERTED.items())
def test_an_annotation_converts_an_argument(argument: tuple[str, str], expected: Any) -> None:
    agent: Any = load_yaml(file_with(*argument))["A"]
    assert agent.value == expected
    with OperatorHarness(agent) as harness:
        harness.push("go")
        assert harness.outputs == [repr(agent.value)]


VALUES = (
    *("2024-05-01", "2024-05-01 12:00:00", "!!binary aGk=", "!!binary /w==", "!!set {a}", "!!omap [{a: 1}]"),
    *("!!pairs [{a: 1}]", "[2024-05-01]", "{d: 2024-05-01}", "{2024-05-01: 1}", "{1: a}", "2024-13-01"),
    *("!!bool x", "12:30", "~"),
)


@each_case("value", VALUES)
@each_case("kind", TYPES)
def test_any_other_argument_is_an_error_with_its_line(kind: str, value: str) -> None:
    try:
        compile_agent(load_yaml(file_with(kind, value))["A"])
    except AgentsError as error:
        assert (error.where or "").startswith(("agents.yaml:4", "agents.yaml:5"))
        assert (kind, value) not in CONVERTED


def test_an_argument_without_a_type_is_no_date() -> None:
    with pytest.raises(AgentConfigurationError) as caught:
        load_yaml(file_with("Any", "2024-05-01"))
    assert caught.value.where == "agents.yaml:5"
    assert "datetime.date(2024, 5, 1)" in (caught.value.found or "")
    assert "annotate 'value'" in (caught.value.fix or "")


def test_an_argument_replaces_a_merged_one() -> None:
    path = file_with("date", "2024-05-02")
    path.write_text(path.read_text("utf-8") + "\n      <<: {value: 2024-05-01}\n", "utf-8")
    agent: Any = load_yaml(path)["A"]
    assert agent.value == date(2024, 5, 2)


DESCRIBED = {
    "chat_models": "{name: r, model: 'openai:x', settings: {x: VALUE}}",
    "vector_stores": "{name: r, store: sqlite, path: VALUE}",
    "embedding_models": "{name: r, model: 'openai:x', options: {x: VALUE}}",
    "resources": "{name: r, type: chat_model, class: 'm:C', arguments: {x: VALUE}}",
}


@each_case("value", ["!!binary /w==", "{d: !!binary /w==}"])
@each_case("section", DESCRIBED)
def test_a_resource_with_bytes_is_an_error_with_its_line(section: str, value: str) -> None:
    entry = DESCRIBED[section].replace("VALUE", value)
    text = f"agents:\n  - name: A\n    {section}:\n      - {entry}\n    class: yaml_arguments:Keeping\n"
    Path("agents.yaml").write_text(text, "utf-8")
    with pytest.raises(AgentsError) as caught:
        compile_agent(load_yaml("agents.yaml")["A"])
    assert (caught.value.where or "").startswith("agents.yaml:4")
