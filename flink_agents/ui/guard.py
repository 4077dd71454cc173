"""Checks each request before a page handles it: host, origin, token and CSRF token."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flink_agents.ui.settings import Access

SESSION = "flink-agents-session"
MOST_BODY = 1 << 20
MOST_FIELDS = 2000
READING = ("GET", "HEAD")

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: browsers would then send "Origin: null" with the forms of the pages themselves.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_FOREIGN = "only pages of this console may send this request"
_LOGIN = (
    "<!doctype html><html lang='en'><meta charset='utf-8'><title>Console</title>"
    "<link rel='stylesheet' href='/static/console.css'><main class='login'><h1>Console</h1>"
    "<p>{said}</p><form method='post' action='/login'><label>Token "
    "<input type='password' name='token' autocomplete='current-password' autofocus required></label> "
    "<button>Open</button></form></main></html>"
)


class Guard:
    """Checks each request, and adds security headers to each response.

    Args:
        app: The application with the pages.
        access: Host names and token of the console.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        self._secret = secrets.token_bytes(32)
        # Cookies do not tell ports apart: another console on this machine has its own.
        self._name = f"{SESSION}-{access.port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request: reject it, answer it with a login, or pass it to the pages."""
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        rejection_reason = self._rejection_reason(scope["method"], headers)
        if rejection_reason:
            return await _plain_response(403, rejection_reason)(scope, receive, guarded)
        form: Mapping[str, list[str]] = {}
        if scope["method"] not in READING:
            try:
                form = parse_qs(
                    (await _read_body(receive)).decode("utf-8", "replace"),
                    keep_blank_values=True,
                    max_num_fields=MOST_FIELDS,
                )
            except _Disconnected:
                # Half a form must not be executed: the reason or an argument could be missing.
                return
            except ValueError:
                return await _plain_response(413, "the form is too large")(scope, receive, guarded)
        response = self._admit_visitor(scope, headers, form)
        await (response or self._app)(scope, receive, guarded)

    def csrf_token(self, session: str) -> str:
        """Return the token that forms of a session must contain."""
        return self._sign_text("form", session)

    def _rejection_reason(self, method: str, headers: Headers) -> str:
        """Return the reason to reject a request, by host, method or origin; empty if it is allowed."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._access.admits_host(hosts[0]):
            return "this console does not have that host name; see --allow-host"
        if method not in (*READING, "POST"):
            return "only GET, HEAD and POST are allowed"
        origin = headers.get("origin")
        if origin is None:
            # Without an Origin, only browsers name the page that sent the request.
            is_foreign = headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
            is_navigation = method in READING and headers.get("sec-fetch-mode") == "navigate"
            return "" if method in READING and (is_navigation or not is_foreign) else _FOREIGN
        return "" if _host_of(origin) == hosts[0] else _FOREIGN

    def _admit_visitor(self, scope: Scope, headers: Headers, form: Mapping[str, list[str]]) -> ASGIApp | None:
        """Return the response to a request that must not reach the pages as it is; None if it may.

        That is a login, an error, or the pages with a cookie for a new session. Stores session and form in
        ``scope``.
        """
        path = scope["path"]
        method = scope["method"]
        session = self._session(headers)
        if path == "/login" and method == "POST":
            return self._log_in(_first_value(form, "token"))
        if path.startswith("/static/") and method in READING:
            return None
        if self._access.token and not session:
            header_token = headers.get("authorization", "").removeprefix("Bearer ")
            query_token = _first_value(parse_qs(scope["query_string"].decode("latin-1")), "token")
            if query_token and method in READING:
                # The token leaves the address: histories and screenshots keep addresses.
                return self._log_in(query_token, path)
            # Servers read headers as Latin-1; programs such as curl send UTF-8.
            as_utf8 = header_token.encode("latin-1").decode("utf-8", "replace")
            if not self._is_token(header_token) and not self._is_token(as_utf8):
                return HTMLResponse(_LOGIN.format(said="This console needs its token."), 401)
        is_new_session = not session
        session = session or self._new_session()
        if method == "POST" and not hmac.compare_digest(
            _first_value(form, "csrf").encode(), self.csrf_token(session).encode()
        ):
            return _plain_response(
                403, "this form is not from this start of the console: load the page again"
            )
        scope.setdefault("state", {}).update(session=session, csrf=self.csrf_token(session), form=form)
        return self._begin_session(session) if is_new_session else None

    def _begin_session(self, session: str) -> ASGIApp:
        """Return the pages, wrapped so that their response sets the cookie of a session."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            async def with_cookie(message: Message) -> None:
                if message["type"] == "http.response.start":
                    MutableHeaders(scope=message).append("set-cookie", self._cookie(session))
                await send(message)

            await self._app(scope, receive, with_cookie)

        return answer

    def _log_in(self, token: str, path: str = "/") -> ASGIApp:
        if not self._access.token or not self._is_token(token):
            return HTMLResponse(_LOGIN.format(said="This token is wrong."), 401)
        # One slash: two would name another machine.
        answer = RedirectResponse("/" + path.lstrip("/\\"), 303)
        answer.headers.append("set-cookie", self._cookie(self._new_session()))
        return answer

    def _is_token(self, token: str) -> bool:
        return hmac.compare_digest(token.strip().encode(), (self._access.token or "").encode())

    def _new_session(self) -> str:
        name = secrets.token_urlsafe(24)
        return f"{name}.{self._sign_text('session', name)}"

    def _session(self, headers: Headers) -> str:
        """Return the session in the cookie of a request; empty if this process has not signed it.

        The header may have cookies of other programs on this host, in any form.
        """
        for cookie in ";".join(headers.getlist("cookie")).split(";"):
            cookie_name, _, value = cookie.strip().partition("=")
            if cookie_name == self._name and self._is_signed(value):
                return value
        return ""

    def _is_signed(self, session: str) -> bool:
        name, _, signature = session.rpartition(".")
        return hmac.compare_digest(signature.encode(), self._sign_text("session", name).encode())

    def _sign_text(self, what: str, text: str) -> str:
        return hmac.new(self._secret, f"{what}\0{text}".encode(), hashlib.sha256).hexdigest()

    def _cookie(self, session: str) -> str:
        return f"{self._name}={session}; Path=/; HttpOnly; SameSite=Strict"


def _first_value(form: Mapping[str, list[str]], name: str) -> str:
    return form.get(name, [""])[0]


def _plain_response(status: int, text: str) -> Response:
    return Response(text + "\n", status, media_type="text/plain")


class _Disconnected(Exception):
    """The visitor disconnected before the request was complete."""


async def _read_body(receive: Receive) -> bytes:
    """Read the whole body of a request.

    Raises:
        ValueError: It is larger than :data:`MOST_BODY`.
        _Disconnected: The visitor disconnected before its end.
    """
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _Disconnected
        body += message.get("body", b"")
        if len(body) > MOST_BODY:
            raise ValueError("too large")
        if not message.get("more_body"):
            return body


def _host_of(origin: str) -> str:
    """Return host and port in an Origin header; empty if the header is invalid."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""
