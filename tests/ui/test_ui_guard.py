"""Who may ask the console, from where, and what it lets a browser do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from flink_agents.api.errors import UnsafeAddressError
from flink_agents.ui.app import FORMS, PAGES
from flink_agents.ui.settings import Access, ConsoleSettings
from tests.suite.tables import each_case
from tests.ui.consoles import BASE, Browser, console

pytestmark = pytest.mark.own_conditions


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with console(ConsoleSettings(signals="signals")) as (console_browser, _, _):
        yield console_browser


@pytest.fixture(scope="module")
def locked() -> Iterator[TestClient]:
    with console(ConsoleSettings(), Access(token="a long token")) as (console_browser, _, _):
        yield console_browser


@each_case("host", ["0.0.0.0", "192.168.0.7", "::", "example.org", ""])
def test_other_addresses_need_a_token(host: str) -> None:
    with pytest.raises(UnsafeAddressError):
        Access(host)
    Access(host, token="a long token")


@each_case("host", ["127.0.0.1", "localhost", "::1", "127.0.0.2"])
def test_addresses_of_this_machine_need_none(host: str) -> None:
    assert Access(host).token is None


@each_case(
    "host, header, admitted",
    [
        ("127.0.0.1", "127.0.0.1:8700", True),
        ("127.0.0.1", "localhost:8700", True),
        ("127.0.0.1", "LOCALHOST:8700", True),
        ("127.0.0.1", "[::1]:8700", True),
        ("127.0.0.1", "127.0.0.1:8701", False),
        ("127.0.0.1", "localhost", False),
        ("127.0.0.1", "evil.example:8700", False),
        ("127.0.0.1", "localhost.evil.example:8700", False),
        ("127.0.0.1", "127.0.0.1.evil.example:8700", False),
        ("127.0.0.1", "10.0.0.1:8700", False),
        ("127.0.0.1", "", False),
        ("127.0.0.1", ":8700", False),
        ("127.0.0.1", "console.example", True),
        ("127.0.0.1", "console.example:443", True),
        ("0.0.0.0", "10.0.0.1:8700", True),
        ("0.0.0.0", "evil.example:8700", False),
        ("::", "[fe80::1]:8700", True),
        ("::", "evil.example:8700", False),
    ],
)
def test_a_host_that_could_point_elsewhere_is_rejected(host: str, header: str, admitted: bool) -> None:
    assert Access(host, token="x", names=("console.example",)).admits_host(header) is admitted


@each_case(
    "headers, status",
    [
        ({}, 200),
        ({"host": "evil.example:8700"}, 403),
        ({"origin": BASE}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:8701"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 200),
        ({"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, 200),
    ],
)
def test_pages_are_for_pages_of_the_console(headers: dict[str, str], status: int, browser: Browser) -> None:
    assert browser.get("/runs", headers=headers).status_code == status


@each_case(
    "headers, token, status",
    [
        ({"origin": BASE}, "right", 200),
        ({"origin": BASE}, "wrong", 403),
        ({"origin": BASE}, "", 403),
        ({"origin": BASE}, "é", 403),
        ({}, "right", 403),
        ({"origin": "http://evil.example"}, "right", 403),
        ({"origin": "null"}, "right", 403),
        ({"origin": BASE, "sec-fetch-site": "same-origin"}, "right", 200),
    ],
)
def test_forms_are_those_of_the_console(
    headers: dict[str, str], token: str, status: int, browser: Browser
) -> None:
    page = browser.page("/signals")
    right = page.split('name="csrf" value="')[1].split('"')[0]
    form = {"csrf": right if token == "right" else token, "name": "", "key": "k"}
    answers = {path: browser.post(path, data=form, headers=headers).status_code for path in FORMS}
    assert set(answers.values()) == {status}


def test_a_form_of_another_visitor_is_rejected(browser: Browser) -> None:
    token = browser.page("/signals").split('name="csrf" value="')[1].split('"')[0]
    browser.cookies.clear()
    answer = browser.post("/signals/send", data={"csrf": token, "name": "n"}, headers={"origin": BASE})
    assert answer.status_code == 403


def test_a_form_that_is_too_large_is_rejected(browser: Browser) -> None:
    answer = browser.post("/signals/send", content=b"x" * (2 << 20), headers={"origin": BASE})
    assert answer.status_code == 413


@each_case("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_other_methods_are_rejected(method: str, browser: Browser) -> None:
    assert browser.request(method, "/runs", headers={"origin": BASE}).status_code == 403


def test_no_page_runs_what_is_not_of_the_console(browser: Browser) -> None:
    for path in [*PAGES, "/static/console.css", "/nothing", "/static/nothing"]:
        answer = browser.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "*" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        # What the policy would not run is not there either.
        assert (
            " style=" not in answer.text and "<script>" not in answer.text and " onclick" not in answer.text
        )


def test_a_page_leads_nowhere_else(browser: Browser) -> None:
    for path in PAGES:
        assert "https://" not in browser.get(path).text


@each_case("path", [*PAGES, "/static/../app.py", "/nothing"])
def test_nothing_is_shown_without_the_token(path: str, locked: TestClient) -> None:
    locked.cookies.clear()
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer "}):
        answer = locked.get(path, headers=headers)
        assert answer.status_code == 401
        assert "<nav" not in answer.text
    assert "set-cookie" not in locked.get(path).headers


def test_the_token_opens_the_console_and_leaves_the_address(locked: TestClient) -> None:
    locked.cookies.clear()
    assert locked.get("/runs?token=wrong").status_code == 401
    answer = locked.get("/runs?token=a+long+token", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "token" not in cookie.split("=")[1]
    assert locked.get("/runs").status_code == 200
    locked.cookies.clear()
    assert locked.post("/login", data={"token": "wrong"}, headers={"origin": BASE}).status_code == 401
    assert locked.post("/login", data={"token": "a long token"}).status_code == 403
    assert locked.post("/login", data={"token": "a long token"}, headers={"origin": BASE}).status_code == 200
    locked.cookies.clear()
    assert locked.get("/", headers={"authorization": "Bearer a long token"}).status_code == 200


@each_case("encoding", ["utf-8", "latin-1"])
def test_a_token_with_other_letters_is_read_from_a_header(encoding: str) -> None:
    with console(ConsoleSettings(), Access(token="Schlüssel")) as (console_browser, _, _):
        assert console_browser.get("/", headers=[(b"authorization", b"Bearer Schl\xff")]).status_code == 401
        header = "Bearer Schlüssel".encode(encoding)
        assert console_browser.get("/", headers=[(b"authorization", header)]).status_code == 200


def test_the_token_leads_to_no_other_machine(locked: TestClient) -> None:
    locked.cookies.clear()
    answer = locked.get("//evil.example/?token=a+long+token", follow_redirects=False)
    assert not answer.headers.get("location", "/").startswith(("//", "http"))


def test_a_cookie_of_another_process_opens_nothing(locked: TestClient) -> None:
    locked.cookies.clear()
    locked.cookies.set("flink-agents-session-8700", "made.up")
    assert locked.get("/").status_code == 401


@each_case(
    "foreign",
    [
        'prefs={"theme":"dark","panes":[1,2]}',
        "_ga=GA1.1.1; path=/",
        "path=/app; domain=localhost; expires=never",
        "user=ada@example.org",
        "user name=x",
        "a=b=c==",
        'quoted="a b, c"',
        'open="never closed',
        "=nameless",
        "valueless",
        ";; ;",
        "über=ö",
        "flink-agents-session-8700=made.up",
        "flink-agents-session-8701=made.up",
        "flink-agents-session-8700=",
    ],
)
@each_case("order", ["{foreign}; {session}", "{session}; {foreign}", "{session};{foreign}"])
def test_cookies_of_other_programs_lock_nobody_out(foreign: str, order: str, locked: TestClient) -> None:
    locked.cookies.clear()
    login = locked.get("/runs?token=a+long+token", follow_redirects=False, headers=_cookies(foreign))
    session = login.headers["set-cookie"].split(";")[0]
    locked.cookies.clear()
    answer = locked.get("/runs", headers=_cookies(order.format(foreign=foreign, session=session)))
    assert answer.status_code == 200 and "set-cookie" not in answer.headers
    # The forms need the session too, and nothing opens without it.
    assert locked.get("/runs", headers=_cookies(foreign)).status_code == 401


def test_our_cookie_is_read_from_each_header(locked: TestClient) -> None:
    locked.cookies.clear()
    login = locked.get("/?token=a+long+token", follow_redirects=False)
    session = login.headers["set-cookie"].split(";")[0]
    locked.cookies.clear()
    headers = [("cookie", "other={}"), ("cookie", session)]
    assert locked.get("/runs", headers=headers).status_code == 200


def _cookies(text: str) -> dict[bytes, bytes]:
    return {b"cookie": text.encode()}


@each_case("token", ["", " ", "\t\n", "two\nlines", "two\r\nlines", "a\0b", "a\x1bb", "a\u2028b"])
@each_case("host", ["127.0.0.1", "0.0.0.0"])
def test_a_token_that_nobody_can_type_is_rejected(host: str, token: str) -> None:
    with pytest.raises(UnsafeAddressError) as raised:
        Access(host, token=token)
    assert not token.strip() or token not in str(raised.value)


@each_case("token", ["a long token\n", "\r\n a long token", " a long token\t"])
def test_space_around_a_token_does_not_count(token: str) -> None:
    access = Access(token=token)
    assert access.token == "a long token"
    with console(ConsoleSettings(), access) as (browser, _, _):
        for typed in ("a long token", " a long token "):
            login = browser.post("/login", data={"token": typed}, headers={"origin": BASE})
            assert login.status_code == 200
            browser.cookies.clear()


def test_files_beside_the_pages_are_not_served(browser: Browser, tmp_path: Path) -> None:
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/vendor/../../app.py", "/static/"):
        answer = browser.get(path)
        assert answer.status_code == 404
        assert "make_app" not in answer.text
