"""Skills in conversations and in agents of pydantic-ai: each use is a recorded call."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent as ModelAgent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from skill_folders import SCRIPT, Clerk, refund, skill, write

from flink_agents import Agent, InputEvent, OutputEvent, Skills, action, skills
from flink_agents.api.errors import ActionFailedError, MissingResourceError, OptionError
from flink_agents.models.engine import FlinkDurability, skills_toolset
from flink_agents.plan import AgentPlan, compile_agent
from flink_agents.plan.files.yaml import load_yaml
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import Reply, ScriptedModel, ToolCall

Make = Callable[..., OperatorHarness]

LOAD = ToolCall("load_skill", {"skill": "refund"})
READ = ToolCall("read_skill_file", {"skill": "refund", "path": "references/rules.txt"})
RUN = ToolCall("run_script", {"skill": "refund", "script": "scripts/share.py", "arguments": ["30"]})
WRONG = ToolCall("run_script", {"skill": "refund", "script": "../share.py"})


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Skills:
    """Skills whose script writes a line at each call."""
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return Skills(str(refund(tmp_path / "office")), inherit=["CALLS"])


def first_content(message: ModelMessage) -> Any:
    """What the first part of a message says."""
    return vars(message.parts[0])["content"]


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text().splitlines()


TOLD = [
    "# Refunds\n\nRun `scripts/share.py` with the sum. `references/rules.txt` has the rules.",
    "0.5",
    {"exit_code": 0, "stdout": "15.0\n", "stderr": ""},
]


def check(harness: OperatorHarness, tmp_path: Path) -> None:
    SCRIPT[:] = [ScriptedModel([LOAD, Reply(tool_calls=[READ, RUN]), "15"])]
    ((loaded, *remaining_results),) = harness.push("complaint")
    assert [loaded["instructions"], *remaining_results] == TOLD
    SCRIPT[0].assert_complete()
    assert calls(tmp_path) == ["30"]


@pytest.mark.nightly(beyond=2)
@pytest.mark.own_conditions
@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("form", ["builder", "class", "yaml", "plan"])
def test_each_use_is_recorded(
    agent_harness: Make, office: Skills, tmp_path: Path, named: bool, form: str
) -> None:
    """A crash at each point calls nothing twice, however the skills are declared."""
    agent: Agent = Clerk(named)
    if form == "builder":
        agent.add_resource("office", "skills", office)
    elif form == "class":

        class OfficeClerk(Clerk):
            @skills(name="office")
            def office(self) -> Skills:
                return Skills(office.arguments["path"], inherit=["CALLS"])

        agent = OfficeClerk(named)
    else:
        file = tmp_path / "agents.yaml"
        file.write_text(
            "agents:\n  - name: Clerk\n    class: skill_folders:Clerk\n"
            f"    configuration: {{named: {str(named).lower()}}}\n"
            f"    skills:\n      - {{name: office, path: {office.arguments['path']}, inherit: [CALLS]}}\n"
        )
        agent = load_yaml(file)["Clerk"]
    if form == "plan":
        assert AgentPlan.from_json(compile_agent(agent).to_json()) == compile_agent(agent)
    check(agent_harness(agent, crash="everywhere", forced_serialization=False), tmp_path)


def test_options_of_the_job_say_where_skills_are(agent_harness: Make, office: Skills, tmp_path: Path) -> None:
    agent = Clerk(True)
    agent.add_resource("office", "skills", Skills("/not/here", inherit=["CALLS"]))
    config = {"skills.office.path": office.arguments["path"]}
    check(agent_harness(agent, config=config, crash=None, forced_replay=False), tmp_path)
    with pytest.raises(OptionError, match="timeout"):
        agent_harness(agent, config={"skills.office.timeout": 0}, crash=None, forced_replay=False)


@pytest.mark.own_conditions
def test_what_is_refused_is_told_to_the_model(agent_harness: Make, office: Skills, tmp_path: Path) -> None:
    agent = Clerk()
    agent.add_resource("office", "skills", office)
    SCRIPT[:] = [ScriptedModel([WRONG, RUN, "15"])]
    harness = agent_harness(agent, crash="everywhere", forced_serialization=False)
    ((refusal, result),) = harness.push("complaint")
    assert "'../share.py' of the skill 'refund' is not available: it leads out" in refusal
    assert result == TOLD[2]
    assert calls(tmp_path) == ["30"]


def test_a_changed_skill_does_not_disturb_a_run_that_goes_on(
    agent_harness: Make, office: Skills, tmp_path: Path
) -> None:
    """What was recorded stays; calls that follow see the new content."""
    agent = Clerk()
    agent.add_resource("office", "skills", office)

    def dies(messages: Any) -> str:
        raise RuntimeError("the service is gone")

    SCRIPT[:] = [ScriptedModel([LOAD, READ, dies])]
    harness = agent_harness(agent, crash=None, forced_replay=False, forced_serialization=False)
    snapshot = harness.snapshot()
    with pytest.raises(ActionFailedError):
        harness.push("complaint")
    rules = Path(office.arguments["path"], "refund/references/rules.txt")
    rules.write_text("0.9")
    SCRIPT[:] = [ScriptedModel([READ, "27"])]
    harness.restore(snapshot)
    ((_, first, second),) = harness.push("complaint")
    assert (first, second) == ("0.5", "0.9")


def test_scripts_that_may_not_be_run(agent_harness: Make, office: Skills) -> None:
    agent = Clerk()
    agent.add_resource("office", "skills", Skills(office.arguments["path"], scripts=False))
    SCRIPT[:] = [ScriptedModel([LOAD, RUN, "15"])]
    harness = agent_harness(agent, crash=None, forced_replay=False, forced_serialization=False)
    ((loaded, refusal),) = harness.push("complaint")
    assert "scripts" not in loaded
    assert "There is no tool 'run_script'" in refusal


def test_a_skill_that_hangs_costs_other_keys_nothing(agent_harness: Make, tmp_path: Path) -> None:
    """Their outputs are complete while it hangs; its process ends with the attempt."""
    pid = tmp_path / "pid"
    hang = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    folder = write(tmp_path / "s", skill("wait", hang=hang))
    agent = Clerk()
    agent.add_resource("office", "skills", Skills(str(folder), timeout=500))

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        assert info.instructions is not None
        assert "load_skill" in info.instructions and info.instructions.endswith("\n- wait: Does wait.")
        request_text = first_content(messages[0])
        if request_text == "hang":
            return ModelResponse([ToolCallPart("run_script", {"skill": "wait", "script": "scripts/hang.py"})])
        return ModelResponse([TextPart("well")])

    SCRIPT[:] = [FunctionModel(answer)]  # type: ignore[list-item]
    harness = agent_harness(
        agent,
        lambda record: record,
        auto_run=False,
        crash=None,
        forced_replay=False,
        forced_restart=False,
        forced_serialization=False,
    )
    harness.push("hang")
    while not (pid.exists() and pid.read_text()):
        harness.advance_time(1)
    harness.push_all([f"order {number}" for number in range(20)])
    while len(harness.outputs) < 20:
        harness.advance_time(1)
    process = int(pid.read_text())
    os.kill(process, 0)
    harness.close()
    while Path(f"/proc/{process}").exists():
        pass


def test_skills_that_the_agent_does_not_have() -> None:
    with pytest.raises(MissingResourceError, match="office"):
        compile_agent(Clerk(True))


@pytest.mark.own_conditions
def test_an_agent_of_pydantic_ai_has_skills(agent_harness: Make, office: Skills, tmp_path: Path) -> None:
    seen: list[str] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(info.instructions or "")
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        if turn == 2:
            return ModelResponse([TextPart(str(first_content(messages[-1])))])
        return ModelResponse([ToolCallPart(call.name, call.text) for call in [(LOAD, RUN)[turn]]])

    helper = ModelAgent(
        FunctionModel(answer),
        name="helper",
        toolsets=[skills_toolset(office)],
        capabilities=[FlinkDurability()],
    )

    class Helping(Agent):
        @action(InputEvent)
        async def help(self, event: InputEvent, ctx: Any) -> OutputEvent:
            return OutputEvent(output=(await helper.run(str(event.input))).output)

    harness = agent_harness(Helping(), crash="everywhere", forced_serialization=False)
    assert harness.push("complaint") == [str(TOLD[2])]
    assert calls(tmp_path) == ["30"]
    assert "- refund: Says how much" in seen[0]
