"""A real browser for tests and screenshots: chromium without a window, driven by its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--remote-debugging-port=0",
)


def find_browser() -> str | None:
    """Return the path of a browser; None if there is none. ``scripts/browser`` installs one."""
    configured_path = os.environ.get("CHROMIUM")
    return configured_path or next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One page of the browser.

    Attributes:
        problems: What the page logged as an error, such as what its policy did not let it do.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._reading = asyncio.create_task(self._read())
        self._number = 0
        self.problems: list[str] = []

    async def send_command(self, method: str, **values: Any) -> Any:
        """Send a command, and return its result."""
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": values})
        return await answer

    async def evaluate(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        response = await self.send_command(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in response:
            raise AssertionError(json.dumps(response["exceptionDetails"])[:500])
        return response["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until an expression is true, also across pages."""
        while True:
            try:
                if await self.evaluate(f"Boolean({script})"):
                    return
            except (RuntimeError, AssertionError):
                # Between two pages there is nothing to ask.
                pass
            await asyncio.sleep(0.05)

    async def open(self, address: str) -> None:
        """Load a page, with its scripts."""
        await self.send_command("Page.navigate", url=address)
        await self.until(f"location.href === {json.dumps(address)} && document.readyState === 'complete'")

    async def screenshot(self, file: Path, width: int, height: int, dark: bool) -> None:
        """Write a picture of the page as it is now."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.send_command("Emulation.setEmulatedMedia", features=scheme)
        await self.send_command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        await self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        response = await self.send_command("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(response["data"]))

    async def close(self) -> None:
        """Stop listening."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        async for message in self._socket:
            payload = json.loads(message.data)
            answer = self._answers.pop(payload.get("id"), None)
            if answer is not None:
                if "error" in payload:
                    answer.set_exception(RuntimeError(str(payload["error"])))
                else:
                    answer.set_result(payload["result"])
            elif payload.get("method") == "Runtime.exceptionThrown":
                self.problems.append(json.dumps(payload["params"]["exceptionDetails"])[:500])
            elif payload.get("method") == "Log.entryAdded" and payload["params"]["entry"]["level"] == "error":
                self.problems.append(payload["params"]["entry"]["text"])


@asynccontextmanager
async def browser_page(browser: str) -> AsyncIterator[Page]:
    """Start the browser with a profile of its own, and give its page."""
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        # A container's root may not use the sandbox; the page is that of the test alone.
        more = ["--no-sandbox"] if os.geteuid() == 0 else []
        process = await asyncio.create_subprocess_exec(
            browser, *FLAGS, *more, f"--user-data-dir={profile}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            async with aiohttp.ClientSession() as session:
                port = await _port(Path(profile), process)
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    targets = [target for target in await answer.json() if target["type"] == "page"]
                address = targets[0]["webSocketDebuggerUrl"]
                async with session.ws_connect(address, max_msg_size=0) as socket:
                    page = Page(socket)
                    for domain in ("Page", "Runtime", "Log"):
                        await page.send_command(f"{domain}.enable")
                    yield page
                    await page.close()
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _port(profile: Path, process: asyncio.subprocess.Process) -> int:
    file = profile / "DevToolsActivePort"
    while not (file.is_file() and file.read_text().strip()):
        assert process.returncode is None, "the browser ended at its start"
        await asyncio.sleep(0.05)
    return int(file.read_text().split()[0])
