"""An agent between two tables of a table environment that the job creates itself."""

from __future__ import annotations

from pydantic import BaseModel
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.table import StreamTableEnvironment

from flink_agents import Agent, AgentsExecutionEnvironment, InputEvent, OutputEvent, RunnerContext, action


class Total(BaseModel):
    """A row of the table behind the agent."""

    customer: str
    total: int


class Totals(Agent):
    output_type = Total

    @action(InputEvent)
    def add(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        order = event.input
        total = ctx.short_term_memory.get("total", 0) + order.amount
        ctx.short_term_memory.set("total", total)
        return OutputEvent(output=Total(customer=order.customer, total=total))


def main() -> None:
    stream_env = StreamExecutionEnvironment.get_execution_environment()
    tables = StreamTableEnvironment.create(stream_env)
    tables.get_config().set("table.local-time-zone", "UTC")
    env = AgentsExecutionEnvironment.get_execution_environment(stream_env, tables)

    rows = [("ada", 3), ("alan", 4), ("ada", 5)]
    orders = tables.from_elements(rows, ["customer", "amount"])
    totals = env.from_table(orders, key_selector="customer").apply(Totals()).to_table()
    assert env.table_env is tables
    tables.create_temporary_view("totals", totals)
    highest = tables.sql_query("SELECT customer, total FROM totals WHERE total > 3")
    result_rows = env.collect(tables.to_data_stream(highest))
    env.execute("own tables")
    for row in sorted(map(tuple, result_rows)):
        print(*row)


if __name__ == "__main__":
    main()
