"""``load_target``: loads the plan that a command line names."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from flink_agents.api.agents.agent import Agent
from flink_agents.api.common.places import describe
from flink_agents.api.errors import PlanFormatError
from flink_agents.plan.compile.compiler import compile_agent
from flink_agents.plan.compile.configuration import is_agent
from flink_agents.plan.compile.literal_secrets import check_plan
from flink_agents.plan.files.yaml import load_yaml
from flink_agents.plan.model import AgentPlan
from flink_agents.plan.references import FunctionRef

_YAML = re.compile(r"(?P<path>.+\.ya?ml)(?::(?P<name>.+))?\Z")
_SCRIPT = re.compile(r"(?P<path>.+\.py):(?P<name>[^:]+)\Z")
FORMS = "module:Agent, file.py:Agent, agents.yaml, agents.yaml:Name or plan.json"
"""The forms of targets, for errors."""


def load_agent(target: str) -> Agent | type[Agent]:
    """Return the agent that ``target`` names, in a form of :func:`load_target` except a plan.

    Raises:
        PlanFormatError: It does not name an agent.
    """
    return _check_agent(target, _resolved(target))


def load_target(target: str) -> AgentPlan:
    """Return the plan of ``target``.

    Args:
        target: ``module:Agent`` (a class or an instance), ``file.py:Agent``, ``agents.yaml``
            with one agent, ``agents.yaml:Name`` or ``plan.json``.

    Raises:
        PlanFormatError: The file cannot be read, or names another number of agents.
        LiteralSecretError: A plan holds a secret.
        AgentDefinitionError: The agent is invalid.
    """
    if target.endswith(".json"):
        try:
            value: Any = AgentPlan.from_json(Path(target).read_bytes(), source=target)
        except OSError as error:
            raise _unreadable(target, str(error)) from error
    else:
        value = _resolved(target)
    if isinstance(value, AgentPlan):
        check_plan(value)
        return value
    return compile_agent(_check_agent(target, value))


def _check_agent(target: str, value: object) -> Agent | type[Agent]:
    """Return ``value`` if it is an agent.

    Raises:
        PlanFormatError: It is not; ``target`` names it.
    """
    if is_agent(value):
        return value
    raise PlanFormatError(
        f"{target} is not an agent",
        expected="an Agent class or instance",
        found=describe(value),
        fix="name the class, or the variable that holds the agent",
    )


def _resolved(target: str) -> Any:
    """Return the agent of a YAML file, or the object that ``module:name`` or ``file.py:name`` names."""
    yaml = _YAML.match(target)
    if yaml is not None:
        return _choose(yaml["path"], yaml["name"])
    if ":" not in target:
        raise PlanFormatError(
            f"{target!r} is not an agent", expected=FORMS, found=target, fix=f"write {target}:Name"
        )
    script = _SCRIPT.match(target)
    return (_import_script(script["path"], script["name"]) if script else FunctionRef.parse(target)).resolve()


def _import_script(path: str, name: str) -> FunctionRef:
    """Import a file like ``python file.py``, with its folder importable; return a reference to ``name``."""
    file = Path(path).resolve()
    if not file.is_file():
        raise _unreadable(path, "no such file")
    sys.path.insert(0, str(file.parent))
    reference = FunctionRef(module=file.stem, qualname=name)
    imported = importlib.import_module(file.stem).__file__
    if imported is None or Path(imported).resolve() != file:
        raise PlanFormatError(
            f"the file {path} has the name of another module",
            expected=f"a module {file.stem!r} that is {path}",
            found=str(imported),
            fix="rename the file",
        )
    return reference


def _unreadable(path: str, problem: str) -> PlanFormatError:
    """Return the error of a file that cannot be read, for the reason ``problem``."""
    return PlanFormatError(
        f"the file {path} cannot be read", expected=FORMS, found=problem, fix="check the path"
    )


def _choose(path: str, name: str | None) -> Agent:
    """Return an agent of a YAML file: the one with that name, or the only one if ``name`` is None.

    Raises:
        PlanFormatError: There is none, or several without a name.
    """
    agents = load_yaml(path)
    if name is None and len(agents) == 1:
        return next(iter(agents.values()))
    if name is None or name not in agents:
        raise PlanFormatError(
            f"{path} has {len(agents)} agents" if name is None else f"{path} has no agent {name!r}",
            expected=" or ".join(f"{path}:{agent_name}" for agent_name in agents),
            found=path if name is None else f"{path}:{name}",
            fix="name one of them",
        )
    return agents[name]
