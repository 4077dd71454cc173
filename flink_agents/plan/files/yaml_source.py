"""A YAML file of agents, with the lines of its entries, so that errors can name them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flink_agents.api.agents.agent import Agent
from flink_agents.api.common.places import short_path
from flink_agents.api.errors import AgentConfigurationError, AgentDefinitionError, PlanFormatError
from flink_agents.api.settings.yaml_source import Location, RepeatedKey, YamlProblem, YamlSource
from flink_agents.plan.compile.configuration import is_plain_json, parameter_types


class AgentsSource:
    """A parsed file.

    Args:
        path: The file.

    Attributes:
        value: Its content.

    Raises:
        PlanFormatError: The file cannot be read, is not YAML, or has a key twice.
    """

    def __init__(self, path: Path) -> None:
        self._name = short_path(str(path))
        self._source = self._read(path)
        self.value: Any = self._source.value

    def place(self, location: Location) -> str:
        """Return ``file:line`` of the entry at ``location``, or of the nearest entry that contains it."""
        return f"{self._name}:{self._source.line(location)}"

    @contextmanager
    def errors_at(self, location: Location) -> Iterator[None]:
        """Give errors about the agent the place of ``location``."""
        try:
            yield
        except AgentDefinitionError as error:
            raise error.at(self.place(location)) from error

    def arguments(
        self, agent_class: type[Agent], configuration: Mapping[str, Any], location: Location
    ) -> dict[str, Any]:
        """Return the arguments of a constructor as JSON values, which its annotations convert.

        Args:
            agent_class: The class.
            configuration: The arguments as YAML reads them.
            location: Their place in the file.

        Raises:
            AgentConfigurationError: JSON has no such value, or the constructor does not say its type.
        """
        types = parameter_types(agent_class)
        arguments: dict[str, Any] = {}
        for name, value in configuration.items():
            place = (*location, name)
            if types.get(name, Any) is Any:
                if not is_plain_json(value):
                    raise self._refusal(agent_class, place, f"{type(value).__name__} {value!r}"[:200])
                arguments[name] = value
                continue
            try:
                arguments[name] = self._source.written(place)
            except YamlProblem as error:
                raise self._refusal(agent_class, place, error.message) from None
        return arguments

    def _refusal(self, agent_class: type[Agent], place: Location, found: str) -> AgentConfigurationError:
        return AgentConfigurationError(
            f"the argument {place[-1]!r} of {agent_class.__name__} cannot be written into the plan",
            expected="JSON values, or dates, sets and UTF-8 texts for a parameter with such an annotation",
            found=found,
            fix=f"annotate {place[-1]!r} in the constructor with its type, or quote the value",
            where=self.place(place),
        )

    def _read(self, path: Path) -> YamlSource:
        try:
            return YamlSource(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise PlanFormatError(
                f"the file {self._name} cannot be read",
                expected="a YAML file of agents",
                found=str(error),
                fix="check the path",
            ) from error
        except RepeatedKey as error:
            raise PlanFormatError(
                error.message,
                expected="each key once",
                found=f"the first one is in line {error.first}",
                fix="remove one",
                where=f"{self._name}:{error.line}",
            ) from None
        except YamlProblem as error:
            raise PlanFormatError(
                f"{self._name} is not YAML",
                expected="a YAML file of agents",
                found=error.message,
                fix="correct the line",
                where=f"{self._name}:{error.line}" if error.line else self._name,
            ) from error
