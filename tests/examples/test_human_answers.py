"""What ``human_approval.py`` takes for an answer, in the terminal and from browsers."""

from __future__ import annotations

import http.client
import importlib
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from flink_agents import ApprovalResponse

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


ANSWERS: list[tuple[str, tuple[bool, Any, Any] | None]] = [
    ("yes", (True, None, None)),
    (" Y ", (True, None, None)),
    ("no", (False, None, None)),
    ("n", (False, None, None)),
    ("No: too much", (False, None, "too much")),
    ("12.50", (True, {"amount": 12.5}, None)),
    *(
        (said, None)
        for said in (
            "",
            "ye",
            "yes please",
            "it was used",
            "nan",
            "inf",
            "-1",
            "1e9",
            "12,50",
            "0x10",
            "nope",
        )
    ),
]


def test_the_terminal_guesses_nothing() -> None:
    read_answer: Any = importlib.import_module("human_approval").read_answer

    for said, expected in ANSWERS:
        answer = read_answer("r", said)
        found = None if answer is None else (answer.approved, answer.arguments, answer.reason)
        assert found == expected, said


class Desk:
    def __init__(self) -> None:
        self.answers: list[ApprovalResponse] = []

    def pending(self) -> list[Any]:
        return []

    def answer(self, response: ApprovalResponse) -> None:
        self.answers.append(response)


FORM = "token=t&id=r&approved=true"


@pytest.fixture
def page() -> Any:
    desk = Desk()
    found = {"desk": desk, "receipts": (list,), "token": "t"}
    handler: Any = importlib.import_module("approval_page")._Handler
    made: Any = type("Handler", (handler,), found)
    with ThreadingHTTPServer(("127.0.0.1", 0), made) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield desk, server.server_address[1]
        server.shutdown()
        thread.join()


def test_the_page_answers_its_own_page_only(page: Any) -> None:
    desk, port = page

    def ask(method: str, path: str, host: str, origin: str | None, body: str | None = None) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        headers = {"Host": host, **({} if origin is None else {"Origin": origin})}
        connection.request(method, path, body, headers)
        status = connection.getresponse().status
        connection.close()
        return status

    own, evil = f"127.0.0.1:{port}", "evil.example.com"
    for host in (evil, f"{evil}:{port}", "127.0.0.1", f"127.0.0.1:{port}.{evil}", ""):
        assert ask("GET", "/", host, None) == 403
        assert ask("GET", "/state", host, None) == 403
        assert ask("POST", "/answer", host, f"http://{own}", FORM) == 403
    for origin in (None, f"http://{evil}", f"https://{own}", "null", f"http://127.0.0.1:{port + 1}"):
        assert ask("POST", "/answer", own, origin, FORM) == 403
    assert ask("POST", "/answer", own, f"http://{own}", "token=x&id=r&approved=true") == 403
    for amount in ("nan", "inf", "-1", "x"):
        assert ask("POST", "/answer", own, f"http://{own}", f"{FORM}&amount={amount}") == 400
    assert desk.answers == []
    assert ask("GET", "/", f"localhost:{port}", None) == 200
    assert ask("POST", "/answer", own, f"http://{own}", FORM) == 200
    assert [one.approved for one in desk.answers] == [True]
