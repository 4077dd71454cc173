"""Sends the inputs to Restate's HTTP ingress, as a client of the service would; it is not counted."""

from __future__ import annotations

import asyncio
import os

import aiohttp
from workload import Progress, key_of, send_all

IN_FLIGHT = 200
INGRESS, ADMIN = (f"http://127.0.0.1:{os.environ[name]}" for name in ("INGRESS", "ADMIN"))
WORKER = f"http://127.0.0.1:{os.environ['PORT']}"


async def register(session: aiohttp.ClientSession) -> None:
    """Register the service, as soon as the server and the service answer."""
    while True:
        try:
            async with session.post(f"{ADMIN}/deployments", json={"uri": WORKER}) as answer:
                if answer.ok:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.1)


async def main() -> None:
    """Send all inputs, and wait for the result of each."""
    progress = Progress()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(None)) as session:
        await register(session)

        async def send(number: int) -> None:
            url = f"{INGRESS}/Counter/{key_of(number)}/handle"
            # The id lets a request that is sent again join the first one.
            headers = {"idempotency-key": f"input-{number}"}
            async with session.post(url, json=number, headers=headers) as answer:
                answer.raise_for_status()
                await answer.read()

        progress.ready()
        await send_all(send, IN_FLIGHT, progress)


if __name__ == "__main__":
    asyncio.run(main())
