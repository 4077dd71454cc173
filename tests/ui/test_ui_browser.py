"""The console in a real browser: its scripts run under its own policy, and its forms come back to it."""

from __future__ import annotations

import asyncio
import html
import json
import time
from pathlib import Path

import pytest

from flink_agents.plan import compile_agent
from flink_agents.ui.rendering import link_to
from flink_agents.ui.settings import ConsoleSettings
from tests.ui.chromium import Page, browser_page, find_browser
from tests.ui.samples import records_of_run, write
from tests.ui.scene import Refunds, write_scene
from tests.ui.serving import served

pytestmark = [pytest.mark.own_conditions, pytest.mark.nightly]

HOSTILE = "s<img src=x onerror=\"document.title='broken'\"><script>document.title='broken'</script>"


async def visit(page: Page, address: str, run: str, place: Path) -> None:
    """Look at all pages as a visitor does."""
    await page.open(address + "/")
    await page.until("document.querySelector('.chart canvas') !== null")
    await page.evaluate("document.querySelector('nav a[href=\"/runs\"]').click()")
    await page.until("location.pathname === '/runs' && document.querySelectorAll('tbody tr').length > 10")
    # Typing searches, without a button.
    await page.evaluate(
        "(() => { const field = document.querySelector('input[name=q]'); field.value = 'customer-ada';"
        " field.dispatchEvent(new Event('input', {bubbles: true})) })()"
    )
    await page.until(
        "document.querySelectorAll('tbody tr').length === 1 && location.search.includes('customer-ada')"
    )
    await page.evaluate("document.querySelector('tbody a').click()")
    await page.until("location.pathname === '/run' && document.querySelectorAll('.bar-row').length > 8")
    await page.evaluate("document.querySelector('.bar-row summary').click()")
    await page.until("document.querySelector('.bar-row').open")
    # A record that arrives shows up without a reload.
    await page.open(address + "/waiting")
    write(place, records_of_run(0, HOSTILE, "suspended", time.time() - 10**6), "late-0")
    await page.until(f"document.body.innerText.includes({json.dumps(HOSTILE[1:])})")
    # The form of a signal comes back with what was wrong: no topic is there, and no broker.
    await page.open(address + "/signals?name=paid&key=ada")
    await page.evaluate(
        "document.querySelector('textarea').value = '{'; document.querySelector('form.decide button').click()"
    )
    await page.until("document.body.innerText.includes('takes JSON')")
    for path in ("/agents", "/approvals", "/dead-letters", "/keys", link_to("/run", id=run)):
        await page.open(address + path)
        await page.until("document.querySelector('h1') !== null")
    assert await page.evaluate("document.title") != "broken"
    assert [html.unescape(problem) for problem in page.problems] == []


def test_a_visitor_sees_the_console_work(tmp_path: Path) -> None:
    browser = find_browser()
    if browser is None:
        pytest.fail("THERE IS NO BROWSER: install one with scripts/browser, or set CHROMIUM")
    run = write_scene(tmp_path, time.time())
    settings = ConsoleSettings(trace=tmp_path, plans=(compile_agent(Refunds()),), signals="answers")

    async def look(address: str) -> None:
        async with browser_page(browser) as page:
            try:
                await asyncio.wait_for(visit(page, address, run.run_id, tmp_path), 400)
            except TimeoutError:
                page_state = await page.evaluate(
                    "location.href + ' ' + document.body.innerText.slice(0, 2000)"
                )
                pytest.fail(f"{page_state}\n{page.problems}")

    with served(settings) as address:
        asyncio.run(look(address))
