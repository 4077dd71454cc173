"""A console for tests, with a client that asks as a browser does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.testclient import TestClient

from flink_agents.ui.app import make_app, make_index
from flink_agents.ui.index import TraceIndex
from flink_agents.ui.outside import Outside
from flink_agents.ui.settings import Access, ConsoleSettings

BASE = "http://127.0.0.1:8700"


class Browser(TestClient):
    """Sends forms with the headers and the token that a page of the console has."""

    def page(self, path: str) -> str:
        answer = self.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text

    def submit(self, path: str, form: dict[str, Any], page: str = "/") -> str:
        match = re.search(r'name="csrf" value="([0-9a-f]+)"', self.page(page))
        token = match.group(1) if match else ""
        answer = self.post(path, data={"csrf": token, **form}, headers={"origin": str(self.base_url)})
        assert answer.status_code == 200, answer.text
        return answer.text


@contextmanager
def console(
    settings: ConsoleSettings, access: Access | None = None, base: str = BASE
) -> Iterator[tuple[Browser, TraceIndex, Outside]]:
    """Give a browser that looks at a console, which has read all records that there are."""
    index = make_index(settings)
    outside = Outside(settings)
    index.refresh()
    with Browser(make_app(settings, access or Access(), index, outside), base_url=base) as browser:
        yield browser, index, outside
