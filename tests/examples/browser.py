"""Tries the page of ``examples/human_approval.py`` in a headless Chromium, as a person would.

``python tests/examples/browser.py [SCREENSHOTS]`` starts the example, approves one refund with another
amount, denies the other one with a reason, and waits for the receipts. It needs Chromium and its driver
(Debian's packages ``chromium`` and ``chromium-driver``), and goes by the WebDriver protocol alone.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples" / "human_approval.py"
SECONDS = 120
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""By this name the protocol hands over elements."""

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
ARGUMENTS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]


class Browser:
    """A session of a browser.

    Args:
        address: Where its driver listens.
        profile: An empty directory for what the browser keeps.
    """

    def __init__(self, address: str, profile: str) -> None:
        self._address = address
        options = {"args": [*ARGUMENTS, f"--user-data-dir={profile}"]}
        wanted = {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}
        session = self._ask("POST", "/session", {"capabilities": wanted})["sessionId"]
        self._address = f"{address}/session/{session}"

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._address + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.loads(response.read())["value"]

    def open(self, url: str) -> None:
        """Go to an address."""
        self._ask("POST", "/url", {"url": url})

    def texts(self, selector: str) -> list[str]:
        """The texts of all elements that match."""
        return [self._ask("GET", f"/element/{one}/text") for one in self._found(selector)]

    def click(self, selector: str) -> None:
        """Click the one element that matches."""
        [one] = self._found(selector)
        self._ask("POST", f"/element/{one}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Type a text into the one field that matches, in place of what is there."""
        [one] = self._found(selector)
        self._ask("POST", f"/element/{one}/clear", {})
        self._ask("POST", f"/element/{one}/value", {"text": text})

    def screenshot(self, path: Path) -> None:
        """Write what the browser shows as a PNG."""
        path.write_bytes(base64.b64decode(self._ask("GET", "/screenshot")))

    def close(self) -> None:
        """End the session."""
        self._ask("DELETE", "")

    def _found(self, selector: str) -> list[str]:
        found = self._ask("POST", "/elements", {"using": "css selector", "value": selector})
        return [one[ELEMENT] for one in found]


def wait_until(what: str, holds: Callable[[], bool]) -> None:
    """Wait for a condition."""
    end = time.monotonic() + SECONDS
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {SECONDS} s: {what}")
        time.sleep(0.2)


@contextmanager
def started_browser() -> Iterator[Browser]:
    driver = shutil.which("chromedriver")
    if driver is None:
        sys.exit("chromedriver is missing; fix: apt-get install chromium chromium-driver")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([driver, f"--port={port}"], stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_until("the driver listens", lambda: _listens(port))
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            browser = Browser(f"http://127.0.0.1:{port}", profile)
            yield browser
            browser.close()
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _listens(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5).close()
    except urllib.error.URLError:
        return False
    return True


@contextmanager
def started_example() -> Iterator[str]:
    """Run the example; gives the address of its page."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, str(EXAMPLE), "--port", "0"]
        process = subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            for line in process.stdout:
                found = re.search(r"http://127\.0\.0\.1:\d+", line)
                if found is not None:
                    yield found[0]
                    break
        finally:
            # As Ctrl-C does: it ends its job and its broker.
            process.send_signal(signal.SIGINT)
            process.wait(SECONDS)


def main(screenshots: Path | None) -> None:
    """Approve and deny, and see the receipts."""
    with started_example() as address, started_browser() as browser:

        def look(name: str) -> None:
            if screenshots is not None:
                browser.screenshot(screenshots / f"{name}.png")

        browser.open(address)
        wait_until("two refunds are pending", lambda: len(browser.texts("article")) == 2)
        look("pending")
        kettle, lamp = (f"article[data-order={order}]" for order in ("kettle", "lamp"))
        browser.type(f"{kettle} .amount", "40")
        browser.click(f"{kettle} .approve")
        browser.type(f"{lamp} .reason", "it was used")
        browser.click(f"{lamp} .deny")
        wait_until("all receipts are there", lambda: len(browser.texts("#receipts li")) == 3)
        wait_until("nothing is pending", lambda: browser.texts("article") == [])
        look("receipts")
        found = browser.texts("#receipts li")
        reason = "tool pay was not approved, but denied by the page: it was used"
        assert found == [
            "ada: 40 paid for kettle",
            "bo: 4 paid for tea",
            f"cy: nothing paid for lamp: {reason}",
        ], found
        assert browser.texts("#pending p") == ["None"]
    print("the page works: one refund approved with another amount, one denied")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
