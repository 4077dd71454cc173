"""Timed jobs whose actions ask a chat model: ``python -m benchmarks.chat JOB EVENTS KEYS``.

``chat``     ``ctx.chat`` through pydantic-ai's provider of OpenAI, with records in SQLite
``direct``   ``pydantic_ai.direct`` in the same action, without a store
``sdk``      the library of OpenAI in the same action, without a store
``turns``    ``ctx.chat`` and ``pydantic_ai.direct`` alternately, a hundred requests each, in one process
``chat-paced``, ``direct-paced``  the same at twenty records a second; of ``EVENTS`` one in ten
``flood``    a function model that answers after half a second, of which 50 requests may be in flight

All but the last send their requests to a local server in another process.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks.common import WARM_UP, agents, discard, numbers, print_figures
from benchmarks.durable import options
from benchmarks.waiting import paced
from flink_agents import Agent, ChatModel, InputEvent, OutputEvent, ResourceDescriptor, action, chat_model

if TYPE_CHECKING:
    from collections.abc import Iterator

UNDER_WAY = 20
BLOCK = 100
FLOOD_UNDER_WAY = 50
FLOOD_SECONDS = 0.5
MODEL = "gpt-5-mini"
SERVER = """
import sys
from flink_agents.testing.models import ModelServer, Reply
with ModelServer(lambda request: Reply("good")) as server:
    print(server.base_url, flush=True)
    sys.stdin.read()
"""


class Requests:
    """Prints processor time per request and how long one takes. Only for the thread of one loop.

    Args:
        events: Number of requests.
    """

    def __init__(self, events: int) -> None:
        self._events = events
        self._first = int(events * WARM_UP)
        self._took: list[float] = []
        self._begun = self._cpu = self._loop = 0.0

    def tick(self, begun: float) -> None:
        """Count a request that began at ``begun``."""
        self._took.append(time.time() - begun)
        if len(self._took) == self._first:
            self._begun, self._cpu, self._loop = time.time(), time.process_time(), time.thread_time()
        if len(self._took) == self._events:
            requests = self._events - self._first
            took = sorted(self._took[self._first :])
            print_figures(
                requests_per_second=requests / (time.time() - self._begun),
                cpu_ms_per_request=1000 * (time.process_time() - self._cpu) / requests,
                loop_ms_per_request=1000 * (time.thread_time() - self._loop) / requests,
                p50_ms=1000 * took[len(took) // 2],
            )


class Asking(Agent):
    """Asks the model by ``ctx.chat``."""

    def __init__(self, events: int, url: str) -> None:
        self.requests = Requests(events)
        self.url = url

    @chat_model
    def analyst(self) -> ResourceDescriptor:
        return ChatModel(f"openai-chat:{MODEL}", base_url=self.url, api_key={"env": "MODEL_KEY"})

    @action(InputEvent, max_concurrency=UNDER_WAY)
    async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
        start_seconds = time.time()
        await ctx.chat("analyst", f"What about {event.input}?")
        self.requests.tick(start_seconds)
        return OutputEvent(output=event.input)


class AskingDirectly(Agent):
    """Asks the model by ``pydantic_ai.direct``."""

    def __init__(self, events: int, url: str) -> None:
        self.requests = Requests(events)
        self.url = url
        self.model: Any = None

    @action(InputEvent, max_concurrency=UNDER_WAY)
    async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
        from pydantic_ai import ModelRequest, direct

        start_seconds = time.time()
        self.model = self.model or direct_model(self.url)
        await direct.model_request(self.model, [ModelRequest.user_text_prompt(f"What about {event.input}?")])
        self.requests.tick(start_seconds)
        return OutputEvent(output=event.input)


class AskingSdk(Agent):
    """Asks the model by the library of OpenAI."""

    def __init__(self, events: int, url: str) -> None:
        self.requests = Requests(events)
        self.url = url
        self.client: Any = None

    @action(InputEvent, max_concurrency=UNDER_WAY)
    async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
        from openai import AsyncOpenAI

        start_seconds = time.time()
        if self.client is None:
            self.client = AsyncOpenAI(base_url=self.url, api_key="key")
        await self.client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": f"What about {event.input}?"}]
        )
        self.requests.tick(start_seconds)
        return OutputEvent(output=event.input)


class Turns:
    """Lets blocks of requests follow one another, and adds up the processor time of each kind of block.

    What else a machine does changes within seconds, and the compilers of the JVM work longer than a job
    runs: figures of two jobs, one behind the other, differ by chance. Only for the thread of one loop.

    Args:
        events: Number of requests.
    """

    def __init__(self, events: int) -> None:
        self._blocks = events // BLOCK
        self._done = 0
        self._cpu = self._loop = 0.0
        self._spent: dict[int, list[tuple[float, float]]] = {0: [], 1: []}
        self._turn = asyncio.Event()

    @property
    def _block(self) -> int:
        return self._done // BLOCK

    async def begin(self, number: int) -> None:
        """Wait until the block of a request is on."""
        while self._block < number // BLOCK:
            await self._turn.wait()
        if not self._done:
            self._cpu, self._loop = time.process_time(), time.thread_time()

    def end(self) -> None:
        """Count a request; the last one of a block lets the next block begin."""
        block = self._block
        self._done += 1
        if self._done % BLOCK:
            return
        cpu = time.process_time()
        loop = time.thread_time()
        if block >= WARM_UP * self._blocks:
            self._spent[block % 2].append((cpu - self._cpu, loop - self._loop))
        self._cpu = cpu
        self._loop = loop
        self._turn.set()
        self._turn = asyncio.Event()
        if block == self._blocks - 1:
            self._print_figures()

    def _print_figures(self) -> None:
        (chat_cpu, chat_loop), (direct_cpu, direct_loop) = (
            [1000 * statistics.median(column) / BLOCK for column in zip(*self._spent[kind], strict=True)]
            for kind in (0, 1)
        )
        print_figures(
            turns_chat_cpu_ms=chat_cpu,
            turns_direct_cpu_ms=direct_cpu,
            turns_cpu_ratio=chat_cpu / direct_cpu,
            turns_loop_ratio=chat_loop / direct_loop,
        )


def asks_chat(event: InputEvent) -> bool:
    """Whether a record belongs to a block of ``ctx.chat``."""
    return event.input // BLOCK % 2 == 0


def asks_directly(event: InputEvent) -> bool:
    """Whether it belongs to one of ``pydantic_ai.direct``."""
    return not asks_chat(event)


class AskingByTurns(Asking):
    """Asks the model in both ways, block by block."""

    def __init__(self, events: int, url: str) -> None:
        super().__init__(events, url)
        self.turns = Turns(events)
        self.model: Any = None

    @action(InputEvent, when=asks_chat, max_concurrency=UNDER_WAY)
    async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await self.turns.begin(event.input)
        await ctx.chat("analyst", f"What about {event.input}?")
        self.turns.end()
        return OutputEvent(output=event.input)

    @action(InputEvent, when=asks_directly, max_concurrency=UNDER_WAY)
    async def ask_directly(self, event: InputEvent, ctx: Any) -> OutputEvent:
        from pydantic_ai import ModelRequest, direct

        await self.turns.begin(event.input)
        self.model = self.model or direct_model(self.url)
        await direct.model_request(self.model, [ModelRequest.user_text_prompt(f"What about {event.input}?")])
        self.turns.end()
        return OutputEvent(output=event.input)


def direct_model(url: str) -> Any:
    """The model of ``pydantic_ai.direct``."""
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    return OpenAIChatModel(MODEL, provider=OpenAIProvider(url, "key"))


class Flooded(Agent):
    """Asks a model that takes its time, with as many keys as there are records."""

    def __init__(self, events: int) -> None:
        self.events = events
        self.done = 0
        self.begun = 0.0

    @chat_model
    def slow(self) -> ResourceDescriptor:
        return ChatModel(clazz="benchmarks.chat:slow_model", max_concurrency=FLOOD_UNDER_WAY)

    @action(InputEvent)
    async def ask(self, event: InputEvent, ctx: Any) -> OutputEvent:
        self.begun = self.begun or time.time()
        await ctx.chat("slow", f"What about {event.input}?")
        self.done += 1
        if self.done == self.events:
            floor = self.events / FLOOD_UNDER_WAY * FLOOD_SECONDS
            seconds = time.time() - self.begun
            print_figures(flood_seconds=seconds, seconds_above_floor=seconds - floor)
        return OutputEvent(output=event.input)


def slow_model() -> Any:
    """A model that answers after half a second."""
    from pydantic_ai.messages import ModelResponse, TextPart
    from pydantic_ai.models.function import FunctionModel

    async def answer(messages: Any, info: Any) -> ModelResponse:
        await asyncio.sleep(FLOOD_SECONDS)
        return ModelResponse([TextPart("good")])

    return FunctionModel(answer)


@contextmanager
def served() -> Iterator[str]:
    """The address of a server in a new process."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None and server.stdout is not None
    try:
        yield server.stdout.readline().strip()
    finally:
        server.stdin.close()
        server.wait()
        server.stdout.close()


def run(agent: Agent, config: dict[str, Any], events: int, keys: int, is_paced: bool = False) -> None:
    """Records come as fast as the agent takes them, or twenty a second."""
    environment = agents(config)
    records = numbers(environment.stream_env, events)
    if is_paced:
        records = records.map(lambda number: paced(number)[0])
    discard(environment.from_datastream(records, lambda number: number % keys).apply(agent).to_datastream())
    environment.execute("chat")


def main(job: str, events: int, keys: int) -> None:
    """Run one job."""
    import os

    os.environ["MODEL_KEY"] = "key"
    with tempfile.TemporaryDirectory() as directory:
        stored = options("sqlite", directory)
        if job == "flood":
            run(Flooded(events), stored, events, keys)
            return
        asking: dict[str, Any] = {
            "chat": Asking,
            "direct": AskingDirectly,
            "sdk": AskingSdk,
            "turns": AskingByTurns,
        }
        with served() as url:
            kind, _, pace = job.partition("-")
            events = max(1, events // 10) if pace else events
            run(
                asking[kind](events, url),
                stored if kind in ("chat", "turns") else {},
                events,
                keys,
                bool(pace),
            )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
