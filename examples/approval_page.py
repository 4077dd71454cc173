"""The page of ``human_approval.py``: pending refunds, with a form to answer each, and the receipts.

It serves people on this machine, and nobody else: it checks the headers Host and Origin. Each form carries a
token of the process, so that no other page in the browser can answer.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from flink_agents import ApprovalResponse
from flink_agents.connectors.kafka import KafkaApprovals

Receipts = Callable[[], list[str]]

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Refunds</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 2rem auto; padding: 0 1rem; }
  article { border: 1px solid #bbb; border-radius: .5rem; padding: .5rem 1rem; margin: 1rem 0; }
  input, button { font: inherit; padding: .2rem .5rem; }
  .amount { width: 6rem; } .gone { opacity: .4; }
</style>
<h1>Refunds</h1>
<h2>Pending</h2>
<main id="pending"><p>None</p></main>
<h2>Receipts</h2>
<ul id="receipts"></ul>
<template id="request">
  <article>
    <p><strong class="who"></strong> claims <b class="claimed"></b> for <span class="order"></span></p>
    <label>Amount <input class="amount" type="number" step="any" min="0"></label>
    <label>Reason <input class="reason"></label>
    <button class="approve">Approve</button> <button class="deny">Deny</button>
  </article>
</template>
<script>
const token = "TOKEN", shown = new Map(), answered = new Set();

async function answer(request, article, approved) {
  const amount = Number(article.querySelector(".amount").value);
  const said = {token, id: request.id, approved, reason: article.querySelector(".reason").value};
  if (approved && amount !== request.arguments.amount) said.amount = amount;
  article.classList.add("gone");
  article.querySelectorAll("button, input").forEach(one => one.disabled = true);
  answered.add(request.id);
  await fetch("/answer", {method: "POST", body: new URLSearchParams(said)});
}

function show(request) {
  const article = document.getElementById("request").content.firstElementChild.cloneNode(true);
  article.dataset.order = request.arguments.order;
  article.querySelector(".who").textContent = request.key;
  article.querySelector(".claimed").textContent = request.arguments.amount;
  article.querySelector(".order").textContent = request.arguments.order;
  article.querySelector(".amount").value = request.arguments.amount;
  article.querySelector(".approve").onclick = () => answer(request, article, true);
  article.querySelector(".deny").onclick = () => answer(request, article, false);
  return article;
}

async function look() {
  try {
    const {pending, receipts} = await (await fetch("/state")).json();
    const ids = new Set(pending.map(one => one.id)), main = document.getElementById("pending");
    for (const [id, article] of shown) if (!ids.has(id)) { article.remove(); shown.delete(id); }
    for (const one of pending) if (!shown.has(one.id)) {
      shown.set(one.id, show(one));
      main.append(shown.get(one.id));
    }
    main.firstElementChild.hidden = shown.size > 0;
    const items = receipts.map(text => Object.assign(document.createElement("li"), {textContent: text}));
    document.getElementById("receipts").replaceChildren(...items);
  } finally {
    setTimeout(look, 500);
  }
}
look();
</script>
</html>
"""


class _Handler(BaseHTTPRequestHandler):
    desk: KafkaApprovals
    receipts: tuple[Receipts]
    token: str

    def is_local(self) -> bool:
        """Whether a page of this server asks. Other names may be resolved to 127.0.0.1, too."""
        port = self.connection.getsockname()[1]
        hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        origin = self.headers.get("Origin")
        return self.headers.get("Host") in hosts and (
            origin is None or origin.removeprefix("http://") in hosts
        )

    def do_GET(self) -> None:
        if not self.is_local():
            self._send(403, "this server is for http://127.0.0.1 only")
        elif self.path == "/":
            self._send(200, PAGE.replace("TOKEN", self.token), "text/html; charset=utf-8")
        elif self.path == "/state":
            pending = [
                {"id": one.id, "key": one.key, "arguments": dict(one.arguments)}
                for one in self.desk.pending()
            ]
            state = {"pending": pending, "receipts": sorted(self.receipts[0]())}
            self._send(200, json.dumps(state), "application/json")
        else:
            self._send(404, "not found")

    def do_POST(self) -> None:
        if not self.is_local() or self.headers.get("Origin") is None:
            return self._send(403, "this server is for its own page only")
        length = int(self.headers.get("Content-Length", 0))
        said = {name: values[-1] for name, values in parse_qs(self.rfile.read(length).decode()).items()}
        if self.path != "/answer" or not secrets.compare_digest(said.get("token", ""), self.token):
            return self._send(403, "this form is not of this page")
        try:
            changed = {"amount": amount_of(said["amount"])} if "amount" in said else None
        except ValueError as error:
            return self._send(400, f"this amount is none: {error}")
        self.desk.answer(
            ApprovalResponse(
                id=said["id"],
                approved=said["approved"] == "true",
                arguments=changed,
                reason=said.get("reason"),
                by="the page",
            )
        )
        self._send(200, "sent")

    def _send(self, status: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Write no line for each request."""


def amount_of(text: str) -> float:
    """The amount that somebody typed.

    Raises:
        ValueError: It is none.
    """
    amount = float(text)
    if not (math.isfinite(amount) and amount >= 0):
        raise ValueError(text)
    return amount


def serve(desk: KafkaApprovals, receipts: Receipts, port: int) -> None:
    """Serve the page until the user interrupts it.

    Args:
        desk: Lists requests and takes answers.
        receipts: Gives the receipts so far.
        port: Its port; 0 takes a free one.
    """
    found = {"desk": desk, "receipts": (receipts,), "token": secrets.token_urlsafe()}
    with ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (_Handler,), found)) as server:
        print(f"answer on http://127.0.0.1:{server.server_address[1]}; stop with Ctrl-C", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("stopped")
