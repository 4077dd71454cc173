"""Commands that install an extra name the place that this package came from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from flink_agents.api.common import installation
from flink_agents.api.common.installation import install_command
from tests.suite.tables import each_case


@pytest.fixture(autouse=True)
def origin() -> Iterator[None]:
    installation._install_origin.cache_clear()  # pyright: ignore[reportPrivateUsage]
    yield
    installation._install_origin.cache_clear()  # pyright: ignore[reportPrivateUsage]


def install_from(monkeypatch: pytest.MonkeyPatch, record: dict[str, Any] | None) -> None:
    """Let the metadata of this package have the record that pip writes about its origin."""

    class Distribution:
        def read_text(self, name: str) -> str | None:
            assert name == "direct_url.json"
            return None if record is None else json.dumps(record)

    monkeypatch.setattr(metadata, "distribution", lambda name: Distribution())


CHECKOUT = Path(__file__).parents[2]
VCS = {"vcs": "git", "commit_id": "abc"}


@each_case(
    ("record", "command"),
    [
        pytest.param(None, 'pip install "flink-agents-python[otel]"', id="index"),
        pytest.param(
            {"url": CHECKOUT.as_uri(), "dir_info": {}}, f'pip install "{CHECKOUT}[otel]"', id="checkout"
        ),
        pytest.param(
            {"url": CHECKOUT.as_uri(), "dir_info": {"editable": True}},
            f'pip install -e "{CHECKOUT}[otel]"',
            id="editable",
        ),
        pytest.param(
            {"url": Path(__file__).as_uri(), "archive_info": {}},
            f'pip install "{__file__}[otel]"',
            id="wheel",
        ),
        pytest.param(
            {"url": "file:///no/such/a.whl", "archive_info": {}},
            'pip install "path/to/checkout[otel]"',
            id="removed wheel",
        ),
        pytest.param(
            {"url": "https://example.org/agents.git", "vcs_info": VCS},
            'pip install "flink-agents-python[otel] @ git+https://example.org/agents.git"',
            id="repository",
        ),
        pytest.param(
            {"url": "https://example.org/a.whl", "archive_info": {}},
            'pip install "flink-agents-python[otel] @ https://example.org/a.whl"',
            id="wheel at a URL",
        ),
    ],
)
def test_the_command_names_the_origin(
    monkeypatch: pytest.MonkeyPatch, record: dict[str, Any] | None, command: str
) -> None:
    installation._install_origin.cache_clear()  # pyright: ignore[reportPrivateUsage]
    install_from(monkeypatch, record)
    assert install_command("otel") == command


def test_a_path_with_spaces_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checkout = tmp_path / "my check-out"
    checkout.mkdir()
    install_from(monkeypatch, {"url": checkout.as_uri(), "dir_info": {}})
    assert install_command("jvm", "ui") == f'pip install "{checkout}[jvm,ui]"'
    assert install_command(options="--upgrade") == f'pip install --upgrade "{checkout}"'


def test_a_checkout_that_is_only_on_the_path_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert install_command("ui") == f'pip install "{CHECKOUT}[ui]"'


def test_no_error_advises_to_install_from_an_index() -> None:
    for file in (CHECKOUT / "flink_agents").rglob("*.py"):
        text = file.read_text("utf-8")
        assert 'pip install "flink-agents-python' not in text, file
        assert "pip install 'flink-agents-python" not in text, file
