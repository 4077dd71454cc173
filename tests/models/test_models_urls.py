"""Workers download what URLs name only if the agent's code allows it, and never from private addresses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from pydantic_ai.messages import AudioUrl, DocumentUrl, FileUrl, ImageUrl, VideoUrl
from suite.tables import each_case

from flink_agents import (
    Agent,
    ChatModel,
    InputEvent,
    OutputEvent,
    ResourceDescriptor,
    RunnerContext,
    action,
    chat_model,
)
from flink_agents.api.errors import ActionFailedError, AgentsError
from flink_agents.testing import OperatorHarness
from flink_agents.testing.models import ModelServer, Reply

Serve = Callable[..., ModelServer]
ONCE: Any = {"max_attempts": 1}
SECRET = b"what only this machine may see"


class Target:
    """A service of the worker's own machine, which counts who asks it."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        target = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                target.asked.append(self.path)
                self.send_response(200)
                self.send_header("content-type", "text/plain")
                self.end_headers()
                self.wfile.write(SECRET)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def target() -> Iterator[Target]:
    new_target = Target()
    yield new_target
    new_target.server.shutdown()
    new_target.server.server_close()


KINDS: dict[str, Callable[..., FileUrl]] = {
    "document": DocumentUrl,
    "picture": ImageUrl,
    "sound": AudioUrl,
    "film": VideoUrl,
}
HOSTS = [
    "127.0.0.1",
    "localhost",
    "[::1]",
    "0.0.0.0",
    "2130706433",
    "127.1",
    "[::ffff:127.0.0.1]",
    "169.254.169.254",
]
ENDS = {"document": "txt", "picture": "png", "sound": "wav", "film": "mp4"}


def looker(url: str, kind: str, allow: bool, by_code: bool, force: Any) -> Agent:
    class Looker(Agent):
        @chat_model
        def eyes(self) -> ResourceDescriptor:
            return ChatModel(
                "openai-chat:gpt-5-mini", base_url=url, allow_urls=allow, retry={"max_attempts": 1}
            )

        @action(InputEvent)
        async def look(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
            content = KINDS[kind](event.input, force_download=force) if by_code else event.input
            return OutputEvent(output=(await ctx.chat("eyes", ["look", content])).output)

    return Looker()


def pushed(agent: Agent, given: Any) -> str:
    """What becomes of an input: ``answered``, or the code of the error."""
    with OperatorHarness(agent, crash=None) as harness:
        try:
            return "answered" if harness.push(given) == ["good"] else "nothing"
        except ActionFailedError as error:
            assert isinstance(error.__cause__, AgentsError), repr(error.__cause__)
            return error.__cause__.code


WAYS = [(False, True, False), (True, True, False), (True, True, True), (True, False, "allow-local")]
CASES = [("document", host, *way) for host in HOSTS for way in WAYS]
CASES += [(kind, HOSTS[0], *way) for kind in ("picture", "sound", "film") for way in WAYS]


@pytest.fixture
def server(model_server: Serve, monkeypatch: pytest.MonkeyPatch) -> ModelServer:
    monkeypatch.setenv("OPENAI_API_KEY", "no-key-at-all")
    return model_server(lambda request: Reply("good"))


@each_case("kind, host, allow, by_code, force", CASES)
def test_nothing_is_fetched_from_this_machine(
    server: ModelServer, target: Target, kind: str, host: str, allow: bool, by_code: bool, force: Any
) -> None:
    """Neither what the code makes of a URL in a record, nor what a record brings, is downloaded from here."""
    url = f"http://{host}:{target.port}/a.{ENDS[kind]}"
    sent_url = url if by_code else KINDS[kind](url, force_download=force)
    outcome = pushed(looker(server.base_url, kind, allow, by_code, force), sent_url)
    assert (outcome == "FA9031") == (not allow), outcome
    assert target.asked == []
    assert SECRET.decode() not in "".join(str(request.body) for request in server.requests)


def test_what_the_code_allows(server: ModelServer, target: Target) -> None:
    """A provider that takes URLs gets them; what is local is fetched only if the code says so itself."""
    url = f"http://127.0.0.1:{target.port}/a"
    assert pushed(looker(server.base_url, "picture", True, True, False), f"{url}.png") == "answered"
    assert f"{url}.png" in str(server.requests[-1].body)
    assert target.asked == []
    assert pushed(looker(server.base_url, "document", True, True, "allow-local"), f"{url}.txt") == "answered"
    assert target.asked == ["/a.txt"]
