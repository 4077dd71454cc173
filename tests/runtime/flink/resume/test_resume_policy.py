"""Which local jobs resume, and what the others say."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from flink_agents.api.errors import CannotResumeError
from flink_agents.api.settings.options import Configuration
from flink_agents.runtime.flink.resume import opening, policy
from flink_agents.runtime.flink.resume.opening import ResumableAgent
from flink_agents.runtime.flink.resume.policy import RECOVERY_PATH, decide_resume, wants_fresh
from flink_agents.runtime.flink.stores import StoreChoice
from tests.suite.tables import each_case

CASES: list[tuple[str, str | None, bool, dict[str, str], bool, str | None]] = [
    ("auto", "orders", True, {}, True, None),
    ("auto", None, True, {}, True, "no name"),
    ("auto", "orders", False, {}, True, "no agent"),
    ("auto", "orders", True, {}, False, "run from a script"),
    ("auto", "orders", True, {RECOVERY_PATH: "file:///x"}, True, "where it starts"),
    ("never", "orders", True, {}, True, "'never'"),
    ("require", "orders", True, {}, True, None),
    ("require", "orders", True, {}, False, None),
    ("require", None, True, {}, True, "no name"),
    ("require", "orders", False, {}, True, "no agent"),
    ("require", "orders", True, {RECOVERY_PATH: "file:///x"}, True, "where it starts"),
]


@each_case(("resume", "name", "has_agents", "flink", "script", "reason"), CASES)
def test_which_jobs_resume(
    resume: str, name: str | None, has_agents: bool, flink: dict[str, str], script: bool, reason: str | None
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy, "main_script", lambda: Path("/jobs/orders.py") if script else None)
        config = Configuration({"local.resume": resume})
        if reason is None:
            home = Path("/jobs") if script else Path.cwd()
            assert decide_resume(config, name, has_agents, flink).state_dir == home / ".flink-agents"
        elif resume == "require":
            with pytest.raises(CannotResumeError, match=reason):
                decide_resume(config, name, has_agents, flink)
        else:
            decision = decide_resume(config, name, has_agents, flink)
            assert decision.state_dir is None and reason in decision.reason and decision.fix


def test_the_directory_can_be_configured(tmp_path: Path) -> None:
    config = Configuration({"local.resume": "require", "local.state-dir": str(tmp_path)})
    assert decide_resume(config, "orders", True, {}).state_dir == tmp_path


def test_a_test_is_no_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert policy.main_script() is None
    main = ModuleType("__main__")
    main.__file__ = str(tmp_path / "job.py")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.delenv("PYTEST_VERSION")
    assert policy.main_script() == tmp_path / "job.py"
    for name in ("<stdin>", str(tmp_path / "jobs.pyz" / "__main__.py")):
        main.__file__ = name
        assert policy.main_script() is None
    main.__file__ = str(tmp_path / "job.py")
    shell = ModuleType("IPython")
    vars(shell)["get_ipython"] = lambda: None
    monkeypatch.setitem(sys.modules, "IPython", shell)
    assert policy.main_script() == tmp_path / "job.py"
    vars(shell)["get_ipython"] = object
    assert policy.main_script() is None


def test_a_start_is_fresh_by_option_or_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["job.py"])
    assert not wants_fresh(Configuration())
    assert wants_fresh(Configuration({"local.fresh": True}))
    monkeypatch.setattr(sys, "argv", ["job.py", "--fresh"])
    assert wants_fresh(Configuration())


@each_case("reason", ["it has no name", "it does not run from a script"])
def test_a_job_that_does_not_resume_warns(reason: str) -> None:
    """Only if its durable steps would run again, and only in scripts."""
    agents = [
        ResumableAgent("Shop", "a", StoreChoice("sqlite", {})),
        ResumableAgent("Clerk", "b", None),
    ]
    decision = policy.ResumeDecision(None, reason=reason, fix="give it a name")
    messages: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening._log, "warning", lambda text, *values: messages.append(text % values))
        patch.setattr(policy, "main_script", lambda: Path("/jobs/orders.py"))
        opening._print_lost_work(decision, agents[1:])
        assert not messages
        opening._print_lost_work(decision, agents)
    assert len(messages) == 1
    assert all(part in messages[0] for part in (reason, "repeat the durable steps of Shop", "give it a name"))
