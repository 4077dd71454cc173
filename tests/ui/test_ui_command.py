"""``flink-agents ui`` and ``flink-agents demo --ui``: what they serve, and what they say if they cannot."""

from __future__ import annotations

import os
import socket
import sys
import urllib.request
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flink_agents.api.common.installation import install_command
from flink_agents.cli.demo import demo_with_console
from flink_agents.cli.main import app
from flink_agents.cli.ui import console_beside
from tests.ui.samples import records_of_run, write

pytestmark = pytest.mark.own_conditions


def page(address: str, path: str = "/") -> str:
    with urllib.request.urlopen(address + path, timeout=60) as answer:
        return answer.read().decode()


def until(address: str, text: str) -> None:
    while text not in page(address, "/runs"):
        pass


def test_another_address_needs_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLINK_AGENTS_UI_TOKEN", raising=False)
    result = CliRunner().invoke(app, ["ui", "--host", "0.0.0.0"])
    assert result.exit_code == 2 and "FA6121" in result.output


def test_a_port_in_use_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound_socket:
        port = str(bound_socket.getsockname()[1])
        result = CliRunner().invoke(app, ["ui", "--port", port, "--path", str(tmp_path)])
    assert result.exit_code == 2 and "FA6120" in result.output and "--port 0" in result.output


def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delitem(sys.modules, "flink_agents.ui.serving", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = CliRunner().invoke(app, ["ui", "--port", "0", "--path", str(tmp_path)])
    assert result.exit_code == 2 and install_command("ui") in result.output


def test_records_show_up_while_the_console_runs(tmp_path: Path) -> None:
    with console_beside(tmp_path, port=0) as address:
        assert "No run is like that" in page(address, "/runs")
        write(tmp_path, records_of_run(0, "sada", "completed"))
        until(address, "ada")


def test_the_demo_has_a_console(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    for name in ("FLINK_AGENTS_TRACE_LEVEL", "FLINK_AGENTS_TRACE_DIRECTORY"):
        monkeypatch.setenv(name, "")

    def run() -> None:
        # As the demo's job does, which has its options from the environment.
        assert os.environ["FLINK_AGENTS_TRACE_LEVEL"] == "calls"
        write(Path(os.environ["FLINK_AGENTS_TRACE_DIRECTORY"]), records_of_run(0, "sada", "completed"))
        sys.exit(0)

    demo_with_console(run, lambda: until(opened[0], "ada"))
    assert "its runs are at http://127.0.0.1:" in capsys.readouterr().out
