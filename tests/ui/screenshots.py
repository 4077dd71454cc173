"""Writes the screenshots of the documentation: ``python -m tests.ui.screenshots docs/pictures``."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

from flink_agents.plan import compile_agent
from flink_agents.ui.rendering import link_to
from flink_agents.ui.settings import ConsoleSettings
from tests.ui.chromium import browser_page, find_browser
from tests.ui.scene import Refunds, write_scene
from tests.ui.serving import served

WIDTH = 1280


async def take_screenshots(address: str, run: str, place: Path) -> None:
    """Take all screenshots of a console."""
    browser = find_browser()
    assert browser is not None, "there is no browser: scripts/browser"
    pages = {
        "console-overview": ("/", 860, False),
        "console-run": (link_to("/run", id=run), 640, False),
        "console-agents": ("/agents", 620, True),
        "console-waiting": ("/waiting", 560, False),
    }
    async with browser_page(browser) as page:
        for name, (path, height, dark) in pages.items():
            await page.screenshot(place / f"{name}.png", WIDTH, height, dark)
            await page.open(address + path)
            await page.until("!document.body.innerText.includes('figures grow until it is read')")
            await page.screenshot(place / f"{name}.png", WIDTH, height, dark)


def main() -> None:
    """Write the files into the directory that the command line names."""
    with tempfile.TemporaryDirectory() as directory:
        run = write_scene(Path(directory), time.time())
        settings = ConsoleSettings(
            trace=Path(directory), plans=(compile_agent(Refunds()),), signals="answers"
        )
        with served(settings) as address:
            asyncio.run(take_screenshots(address, run.run_id, Path(sys.argv[1])))


if __name__ == "__main__":
    main()
