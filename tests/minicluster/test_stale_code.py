"""A module that changes between two jobs, while the interpreter of the workers has it in memory."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flink_agents import AgentsExecutionEnvironment
from flink_agents.api.errors import JobFailedError

pytestmark = pytest.mark.minicluster

MakeEnvironment = Callable[..., AgentsExecutionEnvironment]

MODULE = "stale_code_shop"
SOURCE = """
from flink_agents import Agent, InputEvent, OutputEvent, action

class Shop(Agent):
    output_type = str

    @action(InputEvent)
    def {method}(self, event, ctx):
        return OutputEvent(output=f"{price} of version {{VERSION}}")

VERSION = "{version}"
"""


class Author:
    """Writes the module, and has it in memory as it is written."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / f"{MODULE}.py"

    def write(self, price: str, version: str, method: str = "sell") -> None:
        text = SOURCE.format(price=price, version=version, method=method)
        self.file.write_text(text, encoding="utf-8")
        sys.modules.pop(MODULE, None)
        importlib.invalidate_caches()

    def build(self, env: AgentsExecutionEnvironment) -> list[Any]:
        shop = importlib.import_module(MODULE)
        return env.from_list([1], lambda number: number).apply(shop.Shop).to_list()

    def execute(self, env: AgentsExecutionEnvironment) -> None:
        stream: Any = env.stream_env
        stream.add_python_file(str(self.file))
        env.execute("shop")

    def run(self, env: AgentsExecutionEnvironment) -> list[Any]:
        outputs = self.build(env)
        self.execute(env)
        return outputs


@pytest.fixture
def author(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Author]:
    monkeypatch.syspath_prepend(str(tmp_path))
    # A file that is written twice in a second has bytecode that looks new and is old.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield Author(tmp_path)
    sys.modules.pop(MODULE, None)


@pytest.mark.nightly
def test_a_second_job_runs_its_own_version(agents_environment: MakeEnvironment, author: Author) -> None:
    author.write("ten", "1")
    assert author.run(agents_environment()) == ["ten of version 1"]
    assert author.run(agents_environment()) == ["ten of version 1"]

    author.write("eleven", "2")
    assert author.run(agents_environment()) == ["eleven of version 2"]

    # What stands outside of functions is nowhere in memory as code.
    author.write("eleven", "3")
    assert author.run(agents_environment()) == ["eleven of version 3"]

    # The old module has no such action, and the job could not even be unpickled with it.
    author.write("ten", "1", method="offer")
    assert author.run(agents_environment()) == ["ten of version 1"]


def test_a_job_for_which_the_worker_has_another_version_only_is_refused(
    agents_environment: MakeEnvironment, author: Author
) -> None:
    author.write("ten", "1")
    assert author.run(agents_environment()) == ["ten of version 1"]
    author.write("eleven", "2")
    env = agents_environment()
    author.build(env)
    # The worker will find another text than the driver has imported.
    text = author.file.read_text(encoding="utf-8")
    author.file.write_text(text.replace("eleven", "twelve"), encoding="utf-8")
    with pytest.raises(JobFailedError) as caught:
        author.execute(env)
    text = str(caught.value)
    assert "[FA2005]" in text
    assert f"another version of the module {MODULE} in memory" in text
    assert "found: another Shop.sell; in process" in text
