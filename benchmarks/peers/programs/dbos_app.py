"""DBOS on its SQLite system database: a workflow per input, with async steps.

DBOS has no state per key: the counter is a variable here, and a table of your own in production.
"""

from __future__ import annotations

import asyncio

from dbos import DBOS, DBOSConfig, SetWorkflowID
from workload import FOLDER, Progress, charge, key_of, notify, send_all

IN_FLIGHT = 100

charge_step = DBOS.step(name="charge")(charge)
notify_step = DBOS.step(name="notify")(notify)
counters: dict[str, int] = {}


@DBOS.workflow(name="handle")
async def handle(number: int) -> int:
    """Make the two steps of an input, and count."""
    await charge_step(number)
    await notify_step(number)
    counters[key_of(number)] = counters.get(key_of(number), 0) + 1
    return number


async def send(number: int) -> None:
    """Start the workflow of an input, and wait for it. One that is known is not made again."""
    with SetWorkflowID(f"input-{number}"):
        workflow = await DBOS.start_workflow_async(handle, number)
    await workflow.get_result()


async def main() -> None:
    """Handle all inputs. Started again, DBOS recovers the workflows that had not finished."""
    config: DBOSConfig = {
        "name": "peers",
        "system_database_url": f"sqlite:///{FOLDER / 'dbos.sqlite'}",
        "log_level": "ERROR",
        "application_version": "1",
    }
    DBOS(config=config)
    DBOS.launch()
    progress = Progress()
    progress.ready()
    await send_all(send, IN_FLIGHT, progress)
    DBOS.destroy()


if __name__ == "__main__":
    asyncio.run(main())
