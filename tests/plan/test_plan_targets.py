"""What a command line may name, and what ``flink-agents plan show`` prints of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from plan_shop import shop
from typer.testing import CliRunner

from flink_agents.api.errors import AgentsError, FunctionReferenceError, PlanFormatError
from flink_agents.cli import main
from flink_agents.cli.errors import ERROR_EXIT
from flink_agents.plan import AgentPlan, compile_agent, load_target
from tests.suite.tables import each_case

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PLAN = str(HERE / "golden_plan_v1.json")
YAML = str(HERE / "shop.yaml")

SCRIPT = """
from script_neighbour import answer
from flink_agents import Agent, InputEvent

agent = Agent(name="script").add_action("answer", InputEvent, answer)
if __name__ == "__main__":
    raise SystemExit("the script was run")
"""
NEIGHBOUR = """
from flink_agents import OutputEvent

def answer(event, ctx):
    return OutputEvent(output=event.input)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script; what it makes importable is forgotten afterwards."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "script_job.py").write_text(SCRIPT, encoding="utf-8")
    (folder / "script_neighbour.py").write_text(NEIGHBOUR, encoding="utf-8")
    (folder / "json.py").write_text("agent = 3", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("script_job", "script_neighbour", "jobs", "jobs.script_job"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@each_case(
    ("target", "name"),
    [
        ("plan_shop:built", "Orders"),
        (f"{YAML}:Orders", "Orders"),
        (f"{YAML}:ShopAgent", "ShopAgent"),
        (PLAN, "ShopAgent"),
    ],
)
def test_targets(target: str, name: str) -> None:
    assert load_target(target).name == name


def test_a_plan_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = compile_agent(shop())
    monkeypatch.setattr(sys.modules["plan_shop"], "plan", plan, raising=False)
    assert load_target("plan_shop:plan") is plan


def test_a_script_is_imported_with_its_neighbours(project: Path) -> None:
    plan = load_target("jobs/script_job.py:agent")
    assert plan.name == "script"
    assert str(plan.actions[0].function) == "script_neighbour:answer"


@pytest.mark.parametrize(
    ("target", "kind", "message", "fix"),
    [
        ("plan_shop", PlanFormatError, "'plan_shop' is not an agent", "write plan_shop:Name"),
        (
            "plan_shop:NOT_AN_AGENT",
            PlanFormatError,
            "plan_shop:NOT_AN_AGENT is not an agent",
            "name the class",
        ),
        ("plan_shop:bilt", FunctionReferenceError, "plan_shop:bilt does not exist", "mean 'built'?"),
        ("plan_shp:built", FunctionReferenceError, "plan_shp:built cannot be imported", "PYTHONPATH"),
        ("jobs/no.py:agent", PlanFormatError, "the file jobs/no.py cannot be read", "check the path"),
        ("jobs/json.py:agent", PlanFormatError, "jobs/json.py has the name of another module", "rename"),
        ("jobs/script_job.py:agnt", FunctionReferenceError, "script_job:agnt does not", "mean 'agent'?"),
        ("no.yaml", PlanFormatError, "the file no.yaml cannot be read", "check the path"),
        ("no.json", PlanFormatError, "the file no.json cannot be read", "check the path"),
        (YAML, PlanFormatError, "shop.yaml has 2 agents", "name one of them"),
        (f"{YAML}:Other", PlanFormatError, "has no agent 'Other'", "name one of them"),
    ],
)
def test_targets_that_lead_nowhere(
    project: Path, target: str, kind: type[AgentsError], message: str, fix: str
) -> None:
    with pytest.raises(kind) as caught:
        load_target(target)
    assert message in caught.value.message
    assert caught.value.fix and fix in caught.value.fix


def test_a_missing_import_of_a_script_is_named(project: Path) -> None:
    Path("jobs/script_neighbour.py").write_text("import no_such_neighbour", encoding="utf-8")
    result = CliRunner().invoke(main.app, ["plan", "show", "jobs.script_job:agent"])
    assert result.exit_code == ERROR_EXIT
    assert "expected: a module 'script_neighbour'" in result.stderr
    assert "Traceback" not in result.stderr


TARGETS = ["plan_shop:built", f"{YAML}:ShopAgent", PLAN]


@pytest.mark.parametrize("target", TARGETS)
class TestShow:
    @pytest.fixture(autouse=True)
    def path(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "path", list(sys.path))

    def show(self, *arguments: str) -> str:
        result = CliRunner().invoke(main.app, ["plan", "show", *arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    def test_text(self, target: str) -> None:
        printed = self.show(target)
        plan = load_target(target)
        assert printed.startswith(f"agent {plan.name}\n")
        assert f"fingerprint  {plan.fingerprint}\n" in printed

    def test_json(self, target: str) -> None:
        printed = self.show(target, "--json")
        assert AgentPlan.from_json(printed) == load_target(target)
        assert printed == json.dumps(json.loads(printed), indent=2, ensure_ascii=False) + "\n"

    def test_mermaid(self, target: str) -> None:
        assert self.show(target, "--mermaid").startswith("flowchart LR\n")


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("examples.hello:Greeter", "  greet  InputEvent -> OutputEvent"),
        ("examples/hello.py:Greeter", "  greet  InputEvent -> OutputEvent"),
        ("examples/review_agents.py:ReviewAnalysisAgent", "  tool sentiment  (text) Sentiment of an"),
        ("examples/review_agents.py:ProductSuggestionAgent", "  suggest    ProductSummarised -> OutputEvent"),
    ],
)
def test_the_examples_are_shown_from_the_root(
    monkeypatch: pytest.MonkeyPatch, target: str, line: str
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", list(sys.path))
    result = CliRunner().invoke(main.app, ["plan", "show", target])
    assert result.exit_code == 0, result.output
    assert f"\n{line}" in result.stdout
