"""The agent of ``pydantic_ai_agent.py``, as it would be written for pydantic-ai alone.

It is in a separate module, which workers import: a model has connections, and workers need their own.
``OPENAI_BASE_URL`` and ``OPENAI_API_KEY`` configure its model.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.models.openai import OpenAIChatModel

from flink_agents.models.engine import FlinkDurability


class Decision(BaseModel):
    """What becomes of a claim."""

    pay: float
    reason: str


@dataclass
class Customer:
    """Who claims something, and what is known of that customer."""

    name: str
    paid_before: float


decider = Agent(
    OpenAIChatModel("gpt-5-mini"),
    name="refunds",
    deps_type=Customer,
    output_type=Decision,
    instructions="You decide about claims. Nobody gets more than 100 in all.",
    capabilities=[FlinkDurability()],
)


@decider.tool_plain
def price_of(item: str) -> float:
    """Say what an item costs."""
    prices = {"kettle": 40.0, "lamp": 75.0}
    if item not in prices:
        raise ModelRetry(f"there is no {item}, but {', '.join(prices)}")
    return prices[item]


@decider.tool
def paid_before(ctx: RunContext[Customer]) -> float:
    """Say how much the customer got before."""
    return ctx.deps.paid_before
