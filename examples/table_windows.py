"""An agent between a table with watermarks and windows in SQL: event time passes through it."""

from __future__ import annotations

import tempfile
from datetime import datetime
from pathlib import Path

from pydantic import BaseModel

from flink_agents import (
    Agent,
    AgentsExecutionEnvironment,
    EventTime,
    InputEvent,
    OutputEvent,
    RunnerContext,
    action,
)

PAYMENTS = """\
2024-05-01 12:00:01,ada,3
2024-05-01 12:00:40,alan,4
2024-05-01 12:01:30,ada,5
"""


class Payment(BaseModel):
    """A row of the table before the agent."""

    paid: datetime
    customer: str
    amount: int


class Fee(BaseModel):
    """A row of the table behind it, which has the column of event time besides."""

    customer: str
    fee: int


class Fees(Agent):
    output_type = Fee

    @action(InputEvent)
    async def take(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        payment: Payment = event.input
        return OutputEvent(output=Fee(customer=payment.customer, fee=10 * payment.amount))


def main(file: Path) -> None:
    file.write_text(PAYMENTS, encoding="utf-8")
    env = AgentsExecutionEnvironment.get_execution_environment()
    env.stream_env.set_parallelism(1)
    tables = env.table_env
    tables.get_config().set("table.local-time-zone", "UTC")
    tables.execute_sql(f"""
        CREATE TEMPORARY TABLE payments (
            paid TIMESTAMP(3), customer STRING, amount INT, WATERMARK FOR paid AS paid - INTERVAL '5' SECOND
        ) WITH ('connector' = 'filesystem', 'path' = '{file.as_uri()}', 'format' = 'csv')
    """)
    payments = env.from_table(tables.from_path("payments"), "customer", value=Payment)
    fees = payments.apply(Fees, event_time=EventTime.hold_watermarks()).to_table(rowtime="paid")
    tables.create_temporary_view("fees", fees)
    minutes = tables.sql_query("""
        SELECT DATE_FORMAT(window_start, 'HH:mm'), SUM(fee)
        FROM TABLE(TUMBLE(TABLE fees, DESCRIPTOR(paid), INTERVAL '1' MINUTE))
        GROUP BY window_start, window_end
    """)
    rows = env.collect(tables.to_data_stream(minutes))
    env.execute("fees")
    for row in sorted(map(tuple, rows)):
        print(*row)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(Path(directory) / "payments.csv")
