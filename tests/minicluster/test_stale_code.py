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
from flink_agents.runtime import code_digest

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

    def run(self, env: AgentsExecutionEnvironment) -> list[Any]:
        stream: Any = env.stream_env
        stream.add_python_file(str(self.file))
        shop = importlib.import_module(MODULE)
        outputs = env.from_list([1], lambda number: number).apply(shop.Shop).to_list()
        env.execute("shop")
        return outputs


@pytest.fixture
def author(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Author]:
    monkeypatch.syspath_prepend(str(tmp_path))
    # A file that is written twice in a second has bytecode that looks new and is old.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield Author(tmp_path)
    sys.modules.pop(MODULE, None)


def test_a_second_job_with_a_changed_module_is_refused(
    agents_environment: MakeEnvironment, author: Author, monkeypatch: pytest.MonkeyPatch
) -> None:
    author.write("ten", "1")
    assert author.run(agents_environment()) == ["ten of version 1"]
    assert author.run(agents_environment()) == ["ten of version 1"]

    author.write("eleven", "2")
    with monkeypatch.context() as patched:
        # Without the check, the job runs, and runs the old code.
        patched.setattr(code_digest, "interpreter_name", lambda: "a Python that is not compared")
        assert author.run(agents_environment()) == ["ten of version 1"]

    text = refusal(author, agents_environment())
    assert f"another version of the module {MODULE} in memory" in text
    assert "found: another Shop.sell; in process" in text

    author.write("ten", "2")
    assert "a version that differs outside of functions" in refusal(author, agents_environment())

    # A worker cannot even unpickle the job: its module has no such action.
    author.write("ten", "1", method="offer")
    assert "found: another Shop.sell; in process" in refusal(author, agents_environment())


def refusal(author: Author, env: AgentsExecutionEnvironment) -> str:
    with pytest.raises(JobFailedError) as caught:
        author.run(env)
    assert "[FA2005]" in str(caught.value)
    return str(caught.value)
