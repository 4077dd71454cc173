"""An agent whose author annotates everything: each public name passes a type checker in strict mode."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

import flink_agents
from flink_agents import (
    NOT_DONE,
    Agent,
    AgentCallEvent,
    AgentOptions,
    AgentsError,
    ApprovalDeniedEvent,
    ApprovalOutcome,
    ApprovalRequest,
    ApprovalResponse,
    CallResult,
    ChatMessage,
    ChatModel,
    ChatModelConnection,
    ChatRequestEvent,
    ChatResponseEvent,
    ChatResult,
    ChatUsage,
    ConfigOption,
    Configuration,
    ContextRetrievalRequestEvent,
    ContextRetrievalResponseEvent,
    ConversationHistory,
    DeadLetter,
    DeclaredResource,
    Document,
    DocumentUpdate,
    DurableCallable,
    Event,
    FailedAttempt,
    InputEvent,
    MCPServer,
    MemoryObject,
    MemoryRef,
    MemoryScope,
    NamedEvent,
    OnError,
    OnMismatch,
    OnSuspend,
    OnToolError,
    OutputEvent,
    OutputMode,
    Prompt,
    RateLimit,
    ReActAgent,
    RequestedCall,
    ResourceDescriptor,
    ResourceProvider,
    ResourceRef,
    ResourceType,
    RetryableError,
    RetryPolicy,
    Router,
    RouteRule,
    RunnerContext,
    RunObserver,
    Secret,
    Signal,
    Skills,
    Summary,
    TerminalError,
    Tool,
    ToolRequestEvent,
    ToolResponseEvent,
    UsageLimits,
    action,
    chat_model,
    chat_model_connection,
    client,
    embedding_model,
    long_term_memory,
    mcp_server,
    prompt,
    resource,
    skills,
    tool,
    upgrades,
    vector_store,
)
from flink_agents.api.agents.observers import ObservedRun, Phase
from flink_agents.api.vector_store import ScoredDocument


class Order(BaseModel):
    """A record of the input stream."""

    customer: str
    text: str
    amount: float = 0.0


class Decision(BaseModel):
    """The output of the model."""

    amount: float
    reason: str


class Decided(Event):
    """An event of the author."""

    decision: Decision


class Session:
    """A client of a service."""

    async def post(self, path: str) -> str:
        return path


class Terms(ResourceProvider):
    """A kind of resource of the author."""

    def provide(self, declared: DeclaredResource) -> list[str]:
        return [declared.name, *declared.arguments]


class Phases(RunObserver):
    """Counts phases."""

    def __init__(self) -> None:
        self.phases: list[Phase] = []

    def on_phase(self, run: ObservedRun, phase: Phase, detail: str) -> None:
        self.phases.append(phase)


@upgrades("shop:OldDecision")
def upgrade_decision(fields: dict[str, Any]) -> Decision:
    return Decision(amount=fields["amount"], reason="")


def was_paid(order: str, amount: float) -> str | Any:
    return NOT_DONE if amount else order


async def pay(order: str, amount: float, idempotency_key: str) -> str:
    if amount < 0:
        raise TerminalError("a negative amount")
    if not order:
        raise RetryableError("the service is away", retry_after=1.0)
    return f"{order}: {amount:g} ({idempotency_key})"


class Shop(Agent):
    """Uses each decorator and each part of the context."""

    agent_name = "shop"
    output_type = str
    side_outputs = {"large": float}
    on_error = OnError.DEAD_LETTER
    on_suspend = OnSuspend.INTERLEAVE
    retry = RetryPolicy(max_attempts=3, initial_interval=0.1)

    def __init__(self, limit: float) -> None:
        self.limit = limit

    @chat_model_connection
    def company(self) -> ChatModelConnection:
        return ChatModelConnection(base_url="http://127.0.0.1:9/v1", api_key=Secret(env="KEY"))

    @chat_model
    def analyst(self) -> ChatModel:
        return ChatModel(
            "openai:gpt-5-mini",
            connection="company",
            prompt="greeting",
            tools=["stock"],
            skills=["manners"],
            output_mode=OutputMode.TOOL,
            on_tool_error=OnToolError.TELL_MODEL,
            limits=UsageLimits(requests=5),
            rate_limit=RateLimit(calls=60, per=60),
        )

    @chat_model(name="chosen")
    def choose(self) -> ChatModel:
        rules = (RouteRule(model="analyst", max_characters=100),)
        return ChatModel(router=Router(models={"analyst": "all questions"}, rules=rules))

    @embedding_model
    def embedder(self) -> ResourceDescriptor:
        return ResourceDescriptor(clazz="flink_agents.models.retrieval.wordllama:WordLlama")

    @vector_store
    def library(self) -> ResourceDescriptor:
        embedder = ResourceRef(type=ResourceType.EMBEDDING_MODEL, name="embedder")
        return ResourceDescriptor(clazz="chroma", embedding_model=embedder)

    @long_term_memory
    def notes(self) -> ResourceDescriptor:
        return ResourceDescriptor(clazz="", vector_store="library")

    @mcp_server
    def desk(self) -> MCPServer:
        return MCPServer(command="python", args=["server.py"])

    @skills
    def manners(self) -> Skills:
        return Skills("skills", only=["polite"])

    @resource("terms")
    def terms(self) -> ResourceDescriptor:
        return ResourceDescriptor(clazz=Terms, language="en")

    @prompt
    def greeting(self) -> Prompt:
        return Prompt.from_messages([ChatMessage(role="system", content="Hello {name}")])

    @client
    @asynccontextmanager
    async def payments(self) -> AsyncGenerator[Session]:
        yield Session()

    @tool
    def stock(self, product: str) -> int:
        """Return how many pieces there are.

        Args:
            product: Its name.
        """
        return len(product)

    @tool(name="refund", needs_approval=True)
    async def pay_back(self, order: str, ctx: RunnerContext) -> str:
        """Pay an order back."""
        return await ctx.durable_execute_async(pay, order, 1.0)

    @action(InputEvent, emits=[Decided], timeout=timedelta(seconds=30))
    async def decide(self, event: InputEvent, ctx: RunnerContext) -> Decided:
        order: Order = event.input
        history = ConversationHistory(max_messages=10, summary=Summary(model="analyst"))
        result: ChatResult[Decision] = await ctx.chat(
            "analyst",
            ctx.prompt("greeting", name=order.customer),
            output_type=Decision,
            history=history,
            variables={"name": order.customer},
        )
        usage: ChatUsage = result.usage
        assert usage.requests
        return Decided(decision=result.output)

    @action(Decided, on_error="fail", needs_approval=False, when=lambda event: event.decision.amount > 0)
    async def refund(self, event: Decided, ctx: RunnerContext) -> AsyncIterator[Event]:
        memory: MemoryObject = ctx.short_term_memory
        total: float = memory.get("total", 0.0) + event.decision.amount
        reference: MemoryRef = memory.set("total", total)
        assert ctx.resolve(reference) == total
        if total > self.limit:
            outcome: ApprovalOutcome = await ctx.request_approval("refund", {"amount": total}, timeout=60)
            if not outcome.approved:
                yield ApprovalDeniedEvent(outcome=outcome, event=event)
            total = outcome.arguments["amount"]
        payment = DurableCallable(pay, timeout=5.0, reconciler=was_paid)
        receipt: str = await ctx.durable_execute_async(payment, str(ctx.key), total)
        session: Session = await ctx.client("payments")
        both: list[Any] = await ctx.gather(
            ctx.durable_execute_async(session.post, "a"), ctx.durable_execute_async(session.post, "b")
        )
        await ctx.sleep(timedelta(seconds=1))
        value: Decision = await ctx.wait_for_signal("corrected", Decision, timeout=60)
        checked: str = await ctx.call_agent(Checker, InputEvent(input=value.reason))
        ctx.emit_to("large", total)
        ctx.send_event(NamedEvent(type="Paid", attributes={"amount": total}), delay=timedelta(minutes=1))
        yield OutputEvent(
            output=f"{receipt} {both} {checked} {ctx.now():%Y} {ctx.uuid4()} {ctx.random().random()}"
        )

    @action(ApprovalDeniedEvent)
    def denied(self, event: ApprovalDeniedEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=f"{ctx.key}: denied, {event.outcome.reason}")

    @action("Question")
    def ask(self, event: NamedEvent, ctx: RunnerContext) -> list[Event]:
        calls = (RequestedCall(name="stock", arguments={"product": "tea"}),)
        question = ContextRetrievalRequestEvent(query="tea", vector_store="library")
        return [ChatRequestEvent(model="analyst", messages="hello"), ToolRequestEvent(calls=calls), question]

    @action(ChatResponseEvent, ToolResponseEvent, ContextRetrievalResponseEvent)
    def answered(
        self,
        event: ChatResponseEvent | ToolResponseEvent | ContextRetrievalResponseEvent,
        ctx: RunnerContext,
    ) -> OutputEvent | None:
        match event:
            case ChatResponseEvent():
                return OutputEvent(output=str(event.output))
            case ToolResponseEvent():
                results: tuple[CallResult, ...] = event.results
                return OutputEvent(output=str(results[0].content))
            case ContextRetrievalResponseEvent():
                documents: tuple[ScoredDocument, ...] = event.documents
                return OutputEvent(output=documents[0].text)

    @action(AgentCallEvent)
    async def store(self, event: AgentCallEvent, ctx: RunnerContext) -> None:
        library = ctx.vector_store("library")
        await library.add([Document("tea", id="1", metadata={"year": 2026})])
        await library.update([DocumentUpdate("1", text="green tea")])
        documents = await ctx.retrieve("library", "tea", k=1)
        notes = ctx.long_term_memory("notes")
        await notes.add([document.text for document in documents])
        limits: Mapping[str, Any] = ctx.action_config
        assert ctx.config.get(AgentOptions.JOB_IDENTIFIER) or limits


class Checker(Agent):
    """An agent that others call."""

    @action(InputEvent)
    def check(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=f"{event.input} is fine")


def describe(letter: DeadLetter) -> list[str]:
    attempts: tuple[FailedAttempt, ...] = tuple(letter.attempts)
    return [letter.error_message, *(attempt.error_message for attempt in attempts)]


def answered(request: ApprovalRequest) -> list[Signal]:
    response = ApprovalResponse(id=request.id, approved=False, reason="too much")
    return [request.approve({"amount": 5}, by="Ada"), request.answer(response)]


def built() -> Agent:
    def greet(event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        return OutputEvent(output=f"hello {event.input}")

    stock = Tool(pay, name="pay")
    agent = Agent(name="greeter").add_action("greet", [InputEvent], greet)
    return agent.add_resource("pay", ResourceType.TOOL, stock)


def reacting() -> ReActAgent:
    return ReActAgent(model=ChatModel("openai:gpt-5-mini"), tools=[pay], output_type=Decision)


def settings() -> Configuration:
    limit: ConfigOption[int] = AgentOptions.MAX_IN_FLIGHT
    config = Configuration({limit.key: 10})
    config.set(AgentOptions.ON_MISMATCH, OnMismatch.FAIL)
    number: int = config.get(limit)
    assert number and flink_agents.__version__
    return config


def reported(error: AgentsError) -> str:
    return f"{error.code} {error.fix} {MemoryScope.SHORT_TERM}"
