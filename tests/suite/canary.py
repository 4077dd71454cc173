"""A usable secret that must not appear in any output: for one test, and for a whole run.

``canary`` gives a test a new secret, and searches for it in the places that the test names. ``--canary``
gives the whole run one, as the key of all providers: then no report and no file of a test may contain it.
"""

from __future__ import annotations

import base64
import html
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest

VARIABLE = "CANARY_API_KEY"
PROVIDERS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GROQ_API_KEY", "MISTRAL_API_KEY")
MOST_BYTES = 64 * 1024 * 1024
"""A file is searched up to here."""

_RUN = "CANARY_OF_THE_RUN"
_found = pytest.StashKey[list[str]]()


class Canary:
    """A secret, and all the ways in which texts and files carry it.

    Args:
        value: The secret. Default: a new one, with characters that encodings change.
    """

    def __init__(self, value: str | None = None) -> None:
        self.value = value or f'cnry-{secrets.token_hex(8)}/+"&-{secrets.token_hex(8)}'
        self._forms = {text.encode() for text in self._texts()}

    def _texts(self) -> Iterator[str]:
        data = self.value.encode()
        yield from (self.value, json.dumps(self.value)[1:-1], json.dumps(json.dumps(self.value))[3:-3])
        yield from (quote(data), quote(data, safe=""), quote_plus(data), html.escape(self.value), data.hex())
        for prefix_length in range(3):
            coded = base64.b64encode(b"\0" * prefix_length + data)[4:-4].decode()
            yield from (coded, coded.replace("+", "-").replace("/", "_"))

    def is_in(self, content: str | bytes) -> bool:
        """Whether ``content`` holds the secret, in any form."""
        data = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
        return any(form in data for form in self._forms)

    def places(self, places: Mapping[str, str | bytes]) -> list[str]:
        """Which of several places hold the secret, by name."""
        return [name for name, content in places.items() if self.is_in(content)]

    def files(self, folder: Path) -> list[str]:
        """The files below a folder that hold the secret."""
        paths: list[str] = []
        for file in sorted(folder.rglob("*")):
            if file.is_file() and not file.is_symlink():
                with file.open("rb") as content:
                    if self.is_in(content.read(MOST_BYTES)):
                        paths.append(str(file))
        return paths


@pytest.fixture
def canary(monkeypatch: pytest.MonkeyPatch) -> Canary:
    """A secret in the environment of a test, as ``CANARY_API_KEY``."""
    secret = Canary()
    monkeypatch.setenv(VARIABLE, secret.value)
    return secret


# -- of a whole run ------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--canary", action="store_true", help="give all providers a key that must not appear in any output"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--canary"):
        # Workers of the run, and what they start, inherit it.
        value = os.environ.setdefault(_RUN, Canary().value)
        os.environ.update(dict.fromkeys((VARIABLE, *PROVIDERS), value))
        config.stash[_found] = []
        config.pluginmanager.register(_Watch(config, Canary(value)), "canary-watch")


class _Watch:
    """Looks at what tests report, and at the end at the files that they left."""

    def __init__(self, config: pytest.Config, canary: Canary) -> None:
        self._config = config
        self._canary = canary

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        texts = [report.longreprtext, *(text for _, text in report.sections)]
        if any(map(self._canary.is_in, texts)):
            self._config.stash[_found].append(f"{report.nodeid} ({report.when})")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self._config, "workerinput"):
            # The one who began the workers sees their files as well.
            return
        factory: pytest.TempPathFactory = vars(self._config)["_tmp_path_factory"]
        self._config.stash[_found] += self._canary.files(factory.getbasetemp())
        if self._config.stash[_found]:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for place in self._config.stash[_found]:
            terminalreporter.write_line(f"CANARY: the secret of this run is in {place}", red=True)
