"""An agent in every form: the tests of plans compile it, bind it and draw it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from pydantic import BaseModel

from flink_agents import (
    Agent,
    ChatMessage,
    Event,
    InputEvent,
    OutputEvent,
    Prompt,
    ResourceDescriptor,
    ResourceRef,
    ResourceType,
    RunnerContext,
    action,
    prompt,
    tool,
)
from flink_agents.api.agents.decorators import chat_model, chat_model_connection


class Limits(BaseModel):
    """What a customer may do."""

    credit: float
    currency: str = "EUR"


class Receipt(BaseModel):
    """What leaves the agent."""

    order_id: str
    total: float


class OrderPlaced(Event):
    order_id: str
    total: float


class BigOrderPlaced(OrderPlaced):
    approved: bool = False


class OrderPaid(Event):
    order_id: str


class ShopContext(RunnerContext):
    """A context with a method of the project."""

    def orders(self) -> int:
        return self.short_term_memory.get("orders", 0)


def is_large(event: OrderPlaced) -> bool:
    return event.total > 100


class ShopAgent(Agent):
    """All that a plan can hold."""

    context_class = ShopContext
    side_outputs = {"late": Receipt, "notes": str}
    output_type = Receipt
    on_error = "dead-letter"
    on_unhandled = "ignore"

    def __init__(self, limits: Limits, region: str = "eu") -> None:
        super().__init__()
        self.limits = limits
        self.region = region

    @action(InputEvent)
    def read_order(self, event: InputEvent, ctx: RunnerContext) -> OrderPlaced:
        if event.input > 100:
            return BigOrderPlaced(order_id="1", total=event.input)
        return OrderPlaced(order_id="1", total=event.input)

    @action(OrderPlaced, when=lambda event: event.total > 0, config={"retries": 2})
    async def book(self, event: OrderPlaced, ctx: RunnerContext) -> AsyncIterator[Event]:
        yield OrderPaid(order_id=event.order_id)
        yield OutputEvent(output=Receipt(order_id=event.order_id, total=event.total))

    @action(OrderPlaced, BigOrderPlaced, "OrderPlaced", when=is_large, on_error="fail", name="approve")
    @staticmethod
    def approve_large(event: OrderPlaced, ctx: RunnerContext) -> Iterator[Event]:
        yield OutputEvent(output=Receipt(order_id=event.order_id, total=0))

    @action("OrderPaid")
    async def thank(self, event: OrderPaid, ctx: RunnerContext) -> None:
        ctx.emit_to("notes", f"thank you for {event.order_id}")

    @tool
    def rate(self, amount: float, currency: str = "EUR") -> float:
        """The amount in the currency of the shop.

        Not more than that.
        """
        return amount if currency == self.limits.currency else amount * 2

    @tool(name="double")
    @staticmethod
    def twice(amount: float) -> float:
        """Twice the amount."""
        return 2 * amount

    @prompt
    def greeting(self) -> Prompt:
        return Prompt.from_messages(
            [
                ChatMessage(role="system", content=f"You sell in {self.region}."),
                ChatMessage(role="user", content="Greet {customer}, who spent {total:.2f}."),
            ]
        )

    @chat_model_connection
    @staticmethod
    def local() -> ResourceDescriptor:
        return ResourceDescriptor(clazz="shop.models:Connection", host="localhost")

    @chat_model
    def clerk(self) -> ResourceDescriptor:
        return ResourceDescriptor(
            clazz="shop.models:Setup",
            connection="local",
            prompt=ResourceRef(type=ResourceType.PROMPT, name="greeting"),
            tools=["rate", "double"],
            temperature=0.5,
        )


def shop() -> ShopAgent:
    """The agent of the golden plan."""
    return ShopAgent(Limits(credit=500))


def read_order(event: InputEvent, ctx: RunnerContext) -> OrderPlaced:
    return OrderPlaced(order_id="1", total=event.input)


async def book_order(event: OrderPlaced, ctx: RunnerContext) -> OutputEvent:
    return OutputEvent(output=Receipt(order_id=event.order_id, total=event.total))


def half(amount: float) -> float:
    """Half of it."""
    return amount / 2


def builder() -> Agent:
    """The agent ``Orders`` of ``shop.yaml``, built in code."""
    agent = Agent(name="Orders")
    agent.on_error = "ignore"
    return (
        agent.add_action("read_order", [InputEvent], read_order)
        .add_action("book_order", OrderPlaced, book_order, when=is_large, on_error="fail", name_of="config")
        .add_resource("half", ResourceType.TOOL, half)
        .add_resource("greeting", "prompt", Prompt.from_text("Greet {customer}."))
        .add_resource("local", "chat_model_connection", ResourceDescriptor(clazz="shop.models:Connection"))
        .add_resource(
            "clerk", "chat_model", ResourceDescriptor(clazz="shop.models:Setup", connection="local")
        )
    )


built = builder()
NOT_AN_AGENT = 3
