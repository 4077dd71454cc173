"""LangGraph's functional API with SqliteSaver: a thread per key with the counter, a task per step."""

from __future__ import annotations

import asyncio

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.func import entrypoint, task
from workload import FOLDER, Progress, charge, key_of, notify, send_all

IN_FLIGHT = 100


@task
async def charge_task(number: int) -> int:
    """Make the first step."""
    return await charge(number)


@task
async def notify_task(number: int) -> int:
    """Make the second step."""
    return await notify(number)


async def main() -> None:
    """Handle all inputs; started again, resume each thread at the task that it had not finished."""
    async with AsyncSqliteSaver.from_conn_string(str(FOLDER / "langgraph.sqlite")) as saver:
        await saver.conn.execute("PRAGMA synchronous = FULL")

        @entrypoint(checkpointer=saver)
        async def handle(number: int, *, previous: tuple[int, int] | None = None):
            count, _ = previous or (0, -1)
            await charge_task(number)
            await notify_task(number)
            return entrypoint.final(value=number, save=(count + 1, number))

        locks: dict[str, asyncio.Lock] = {}

        async def send(number: int) -> None:
            async with locks.setdefault(key_of(number), asyncio.Lock()):
                config = {"configurable": {"thread_id": key_of(number)}}
                value = number
                if resuming:
                    # The value of a thread is the last input that it finished; a new thread has {}.
                    state = await handle.aget_state(config)
                    if isinstance(state.values, int) and state.values >= number:
                        return
                    value = None if state.next else number
                await handle.ainvoke(value, config, durability="sync")

        resuming = bool(await (await saver.conn.execute("SELECT 1 FROM sqlite_master")).fetchone())
        progress = Progress()
        progress.ready()
        await send_all(send, IN_FLIGHT, progress)


if __name__ == "__main__":
    asyncio.run(main())
