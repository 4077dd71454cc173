"""One virtual clock for everything in the event loop of a harness."""

from __future__ import annotations

import asyncio
import contextvars
import http.server
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, cast

import httpx
import pytest

from flink_agents import Agent, Event, InputEvent, OutputEvent, RetryPolicy, action
from flink_agents.api.errors import ActionFailedError, HarnessHangError, RetriesExhaustedError
from flink_agents.runtime.loop.agent_loop import AgentLoop
from flink_agents.testing import OperatorHarness
from flink_agents.testing.fakes import clock
from flink_agents.testing.fakes.clock import Clock
from flink_agents.testing.fakes.outside_work import OutsideWork
from flink_agents.testing.fakes.virtual_loop import VirtualLoop
from tests.suite.tables import each_case

HOUR = 3600.0
"""Nobody waits for that in a test: a wait that is not virtual hangs."""

Body = Callable[[Any], Awaitable[Any]]

MOVES: list[float] = []
CALLS: list[Any] = []


@pytest.fixture(autouse=True)
def _count_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    MOVES.clear()
    CALLS.clear()
    move = Clock._move_loops

    def note(self: Clock, seconds: float) -> None:
        MOVES.append(seconds)
        move(self, seconds)

    monkeypatch.setattr(Clock, "_move_loops", note)


def agent_of(body: Body, **settings: Any) -> Agent:
    """Return an agent whose action awaits ``body`` and emits what that returns."""

    class Waiting(Agent):
        @action(InputEvent, **settings)
        async def wait(self, event: InputEvent, ctx: Any) -> OutputEvent:
            return OutputEvent(output=await body(ctx))

    return Waiting()


def harness_of(body: Body, config: dict[str, Any] | None = None, **settings: Any) -> OperatorHarness:
    return OperatorHarness(
        agent_of(body, **settings),
        config=config,
        forced_serialization=False,
        hang_after=60,
    )


async def _outcome_of(awaitable: Awaitable[Any]) -> Any:
    try:
        return await awaitable
    except TimeoutError:
        return "timeout"


# -- what waits, and within what it waits ------------------------------------------------


async def sleep_durably(ctx: Any, seconds: float) -> None:
    await ctx.sleep(seconds)


async def sleep_plainly(ctx: Any, seconds: float) -> None:
    await asyncio.sleep(seconds)


async def wait_for_signal(ctx: Any, seconds: float) -> None:
    with pytest.raises(TimeoutError):
        await ctx.wait_for_signal("never", timeout=seconds)


async def wait_for_a_late_call(ctx: Any, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.call_later(seconds, future.set_result, None)
    await future


async def wait_for_a_late_function(ctx: Any, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    loop.call_later(seconds, lambda: future.set_result(None))
    await future


async def wait_for_an_event(ctx: Any, seconds: float) -> None:
    event = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, event.set)
    await event.wait()


async def take_from_a_queue(ctx: Any, seconds: float) -> None:
    queue: asyncio.Queue[int] = asyncio.Queue()

    async def fill() -> None:
        await asyncio.sleep(seconds)
        await queue.put(1)

    task = asyncio.create_task(fill())
    await queue.get()
    await task


async def wait_for_a_condition(ctx: Any, seconds: float) -> None:
    condition, ready = asyncio.Condition(), list[int]()

    async def tell() -> None:
        await asyncio.sleep(seconds)
        async with condition:
            ready.append(1)
            condition.notify_all()

    task = asyncio.create_task(tell())
    async with condition:
        await condition.wait_for(lambda: bool(ready))
    await task


async def call_durably(ctx: Any, seconds: float) -> None:
    await ctx.durable_execute_async(asyncio.sleep, seconds)


WAITS = [
    sleep_durably,
    sleep_plainly,
    wait_for_signal,
    wait_for_a_late_call,
    wait_for_a_late_function,
    wait_for_an_event,
    take_from_a_queue,
    wait_for_a_condition,
    call_durably,
]


async def within_timeout(ctx: Any, inner: Awaitable[Any], seconds: float) -> Any:
    async with asyncio.timeout(seconds):
        await inner
    return "ended"


async def within_wait_for(ctx: Any, inner: Awaitable[Any], seconds: float) -> Any:
    await asyncio.wait_for(inner, seconds)
    return "ended"


async def within_asyncio_wait(ctx: Any, inner: Awaitable[Any], seconds: float) -> Any:
    task = asyncio.ensure_future(inner)
    done, _ = await asyncio.wait({task}, timeout=seconds)
    task.cancel()
    return "ended" if done else "timeout"


async def within_ctx_wait(ctx: Any, inner: Awaitable[Any], seconds: float) -> Any:
    task = asyncio.ensure_future(inner)
    done, _ = await ctx.wait([task], timeout=seconds)
    task.cancel()
    return "ended" if done else "timeout"


async def within_as_completed(ctx: Any, inner: Awaitable[Any], seconds: float) -> Any:
    async for _ in ctx.as_completed([inner], timeout=seconds):
        pass
    return "ended"


async def within_a_group(ctx: Any, inner: Awaitable[Any], seconds: float) -> Any:
    async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
        group.create_task(asyncio.ensure_future(inner).get_coro() if asyncio.isfuture(inner) else inner)  # type: ignore[arg-type]
    return "ended"


async def within_join(ctx: Any, inner: Awaitable[Any], seconds: float) -> Any:
    async with asyncio.timeout(seconds):
        await ctx.join(inner, asyncio.sleep(1))
    return "ended"


async def within_gather(ctx: Any, inner: Awaitable[Any], seconds: float) -> Any:
    async with asyncio.timeout(seconds):
        await asyncio.gather(inner, asyncio.sleep(1))
    return "ended"


async def within_shield(ctx: Any, inner: Awaitable[Any], seconds: float) -> Any:
    task = asyncio.ensure_future(inner)
    try:
        async with asyncio.timeout(seconds):
            await asyncio.shield(task)
    finally:
        task.cancel()
    return "ended"


AROUND = [
    within_timeout,
    within_wait_for,
    within_asyncio_wait,
    within_ctx_wait,
    within_as_completed,
    within_a_group,
    within_join,
    within_gather,
    within_shield,
]


@pytest.mark.parametrize("around", AROUND)
@each_case("wait", WAITS)
@each_case(("limit", "outcome"), [(2 * HOUR, "ended"), (HOUR / 2, "timeout")])
@pytest.mark.executes_once
def test_waits_end_in_virtual_time(around: Any, wait: Any, limit: float, outcome: str) -> None:
    async def body(ctx: Any) -> Any:
        return await _outcome_of(around(ctx, wait(ctx, HOUR), limit))

    with harness_of(body) as harness:
        start_ms = harness.current_time
        assert harness.push(1) == [outcome]
        assert harness.current_time - start_ms == 1000 * min(limit, HOUR)


@each_case("wait", [wait for wait in WAITS if wait not in (sleep_durably, wait_for_signal)])
def test_waits_without_a_limit_pass_at_once(wait: Any) -> None:
    async def body(ctx: Any) -> str:
        await wait(ctx, HOUR)
        return "ended"

    with harness_of(body) as harness:
        assert harness.push(1) == ["ended"]


@pytest.mark.executes_once
def test_a_wait_for_a_month_takes_few_moves_of_the_clock() -> None:
    async def body(ctx: Any) -> str:
        async with asyncio.timeout(60 * 24 * HOUR):
            await ctx.sleep(timedelta(days=30))
        return "ended"

    with harness_of(body) as harness:
        assert harness.push(1) == ["ended"]
    assert len(MOVES) < 100


@each_case("years", [1, 300])
def test_years_pass_wait_by_wait(years: int) -> None:
    """A clock that has come far has a coarser time than a timer of asyncio expects."""

    async def body(ctx: Any) -> str:
        for _ in range(3):
            await ctx.sleep(timedelta(days=365 * years))
            async with asyncio.timeout(365 * 24 * HOUR):
                await asyncio.sleep(HOUR)
        return "ended"

    harness = OperatorHarness(agent_of(body), crash="everywhere")
    harness.push(1)
    assert harness.end_input() == ["ended"]


@pytest.mark.executes_once
def test_sleeps_end_in_the_order_of_their_times() -> None:
    async def body(ctx: Any) -> list[float]:
        ended = list[float]()

        async def sleep(wait: Any, seconds: float) -> None:
            await wait(ctx, seconds)
            ended.append(seconds)

        async with asyncio.timeout(HOUR):
            await asyncio.gather(sleep(sleep_durably, 30), sleep(sleep_plainly, 20), sleep(sleep_durably, 10))
        return ended

    with harness_of(body) as harness:
        assert harness.push(1) == [[10, 20, 30]]


def test_waits_in_memory_do_not_change_after_crashes() -> None:
    async def body(ctx: Any) -> list[Any]:
        first = await _outcome_of(within_timeout(ctx, ctx.sleep(HOUR), HOUR / 2))
        await ctx.durable_execute_async(_note, "call")
        return [first, await _outcome_of(within_timeout(ctx, ctx.sleep(HOUR), 2 * HOUR))]

    with OperatorHarness(agent_of(body), crash="everywhere", forced_serialization=False) as harness:
        assert harness.push(1) == [["timeout", "ended"]]


async def _note(value: Any) -> None:
    CALLS.append(value)


# -- retries -----------------------------------------------------------------------------

PATIENT = RetryPolicy(max_attempts=None, max_duration=65, initial_interval=10, factor=1, jitter=0)


async def _fail() -> None:
    CALLS.append("attempt")
    if len(CALLS) > 50:
        raise TypeError("the policy allows this for too long")
    raise ConnectionError("again")


async def _fail_in_action(ctx: Any) -> None:
    await _fail()


async def _fail_in_call(ctx: Any) -> None:
    await ctx.durable_execute_async(_fail, retry=PATIENT)


class Failing(Agent):
    @action(InputEvent, retry=PATIENT)
    async def fail(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await _fail()
        return OutputEvent(output="never")


async def _fail_in_sub_agent(ctx: Any) -> None:
    await ctx.call_agent(Failing(), "x")


@each_case(
    ("body", "settings"),
    [(_fail_in_action, {"retry": PATIENT}), (_fail_in_call, {}), (_fail_in_sub_agent, {})],
    ids=["action", "call", "sub-agent"],
)
@pytest.mark.executes_once
def test_retries_stop_after_their_longest_duration(body: Body, settings: dict[str, Any]) -> None:
    CALLS.clear()
    with harness_of(body, **settings) as harness, pytest.raises(ActionFailedError):
        harness.push(1)
    # At 0, 10, ... 60 seconds.
    assert len(CALLS) == 7


@pytest.mark.executes_once
def test_the_duration_of_retries_includes_a_suspension() -> None:
    async def body(ctx: Any) -> None:
        await ctx.sleep(50)
        await _fail()

    with harness_of(body, retry=PATIENT) as harness, pytest.raises(RetriesExhaustedError):
        harness.push(1)
        harness.advance_time(timedelta(hours=1))
    assert len(CALLS) == 7


class FlakyAfterWait(Agent):
    @action(InputEvent, retry=RetryPolicy(initial_interval=HOUR, max_interval=HOUR, max_attempts=3))
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        await ctx.sleep(10)
        await ctx.durable_execute_async(_fail_twice)
        return OutputEvent(output="done")


async def _fail_twice() -> None:
    CALLS.append("attempt")
    if len(CALLS) < 3:
        raise ConnectionError("again")


@pytest.mark.parametrize("auto_run", [True, False])
@pytest.mark.executes_once
def test_a_sub_agent_that_retries_after_a_wait_continues(auto_run: bool) -> None:
    async def body(ctx: Any) -> Any:
        return await ctx.call_agent(FlakyAfterWait(), "x")

    agent = agent_of(body)
    with OperatorHarness(agent, auto_run=auto_run, crash=None, forced_serialization=False) as harness:
        harness.push(1)
        for _ in range(4):
            harness.run_until_idle()
            harness.advance_time(timedelta(hours=2))
        harness.run_until_idle()
        assert harness.outputs == ["done"]
    assert len(CALLS) == 3


FLAKY = RetryPolicy(initial_interval=HOUR, max_interval=HOUR, max_attempts=2, jitter=0)


async def _sleep_a_year_with_a_timeout(ctx: Any) -> Any:
    class Sleeping(Agent):
        @action(InputEvent, timeout=10)
        async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
            await ctx.sleep(timedelta(days=365))
            return OutputEvent(output="done")

    return [await ctx.call_agent(Sleeping(), "x")]


async def _ask_two_that_retry(ctx: Any) -> Any:
    class Flaky(Agent):
        @action(InputEvent, retry=FLAKY)
        async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
            await ctx.durable_execute_async(_note, event.input)
            await asyncio.sleep(HOUR)
            if TRIES.append(event.input) or TRIES.count(event.input) == 1:
                raise ConnectionError
            return OutputEvent(output="done")

    return await ctx.gather(*(ctx.call_agent(Flaky(), number) for number in range(2)))


TRIES: list[Any] = []


@each_case("body", [_sleep_a_year_with_a_timeout, _ask_two_that_retry])
@pytest.mark.executes_once
def test_sub_agents_wait_in_virtual_time(body: Body) -> None:
    TRIES.clear()
    with harness_of(body, timeout=None) as harness:
        harness.push(1)
        [output] = harness.end_input() or harness.outputs
    assert set(output) == {"done"}


# -- what else sees the time -------------------------------------------------------------


class Reminder(Event):
    pass


class Mixed(Agent):
    @action(InputEvent)
    async def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
        if event.input == "sleep":
            await ctx.sleep(60)
        elif event.input == "remind":
            ctx.send_event(Reminder(), delay=60)
        else:
            await asyncio.sleep(HOUR)
        return OutputEvent(output=event.input)

    @action(Reminder)
    async def remind(self, event: Reminder, ctx: Any) -> OutputEvent:
        return OutputEvent(output="reminded")


@pytest.mark.parametrize("parallelism", [1, 3])
def test_time_that_passes_in_a_push_passes_for_all_keys(parallelism: int) -> None:
    with OperatorHarness(Mixed, str, parallelism=parallelism) as harness:
        assert harness.push_all(["sleep", "remind"]) == ["remind"]
        assert sorted(harness.push("wait")) == ["reminded", "sleep", "wait"]


@pytest.mark.executes_once
def test_without_auto_run_time_is_the_tests() -> None:
    async def body(ctx: Any) -> str:
        for _ in range(3):
            CALLS.append(await asyncio.sleep(HOUR, "slept"))
        return "done"

    with OperatorHarness(agent_of(body), auto_run=False, crash=None, forced_serialization=False) as harness:
        harness.push(1)
        for count in range(3):
            _wait_until(lambda: harness.busy)
            assert len(CALLS) == count
            harness.advance_time(timedelta(hours=1))
            _wait_until(lambda count=count: len(CALLS) == count + 1)
        harness.run_until_idle()
        assert harness.outputs == ["done"]


@pytest.mark.executes_once
def test_a_run_that_polls_does_not_move_the_wall_clock_of_the_test() -> None:
    polls = threading.Event()

    async def body(ctx: Any) -> str:
        for number in range(100):
            await asyncio.sleep(0.001)
            if number == 50:
                polls.set()
        return "ended"

    with OperatorHarness(agent_of(body), auto_run=False, forced_serialization=False) as harness:
        start_ms = harness.current_time
        harness.push(1)
        assert polls.wait(60)
        assert harness.current_time == start_ms
        assert harness.run_until_idle() == ["ended"]


def test_a_signal_comes_within_a_timeout_if_the_test_waits_for_a_limited_time() -> None:
    async def body(ctx: Any) -> str:
        async with asyncio.timeout(HOUR):
            return str(await ctx.wait_for_signal("go"))

    with OperatorHarness(agent_of(body), auto_run=False, forced_serialization=False) as harness:
        harness.push(1)
        with pytest.raises(HarnessHangError):
            harness.run_until_idle(0.1)
        harness.signal(0, "go", "went")
        assert harness.run_until_idle() == ["went"]


@pytest.mark.executes_once
def test_each_timer_fires_at_its_own_time_while_the_test_lets_time_pass() -> None:
    async def body(ctx: Any) -> str:
        for _ in range(10):
            CALLS.append(await asyncio.sleep(HOUR, "slept"))
        return "done"

    with OperatorHarness(agent_of(body), auto_run=False, crash=None, forced_serialization=False) as harness:
        harness.push(1)
        _wait_until(lambda: not CALLS and harness.busy)
        harness.advance_time(timedelta(hours=5.5))
        _wait_until(lambda: len(CALLS) == 5)


def _wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.001)


def test_the_end_of_the_input_moves_from_wait_to_wait() -> None:
    async def body(ctx: Any) -> int:
        await ctx.sleep(timedelta(days=30))
        return ctx.key

    with OperatorHarness(agent_of(body), lambda key: key, forced_serialization=False) as harness:
        harness.push_all(range(20))
        assert sorted(harness.end_input()) == list(range(20))


# -- threads and real I/O ----------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A server whose answers take a while."""

    class Slow(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            time.sleep(0.2)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def _block() -> str:
    time.sleep(0.2)
    return "ok"


async def use_a_thread(ctx: Any, url: str) -> Any:
    return await asyncio.to_thread(_block)


async def use_an_executor(ctx: Any, url: str) -> Any:
    future = asyncio.get_running_loop().run_in_executor(None, _block)
    while not future.done():
        await asyncio.sleep(1)
    return future.result()


async def use_a_durable_thread(ctx: Any, url: str) -> Any:
    return await ctx.durable_execute_async(_block)


async def use_http(ctx: Any, url: str) -> Any:
    async with httpx.AsyncClient() as client:
        return (await client.get(url)).text


async def use_durable_http(ctx: Any, url: str) -> Any:
    return await ctx.durable_execute_async(use_http, None, url)


async def use_a_process(ctx: Any, url: str) -> Any:
    code = "import time; time.sleep(0.2); print('ok')"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=subprocess.PIPE)
    output, _ = await process.communicate()
    return output.decode().strip()


async def use_a_timer_thread(ctx: Any, url: str) -> Any:
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    threading.Timer(0.2, loop.call_soon_threadsafe, [event.set]).start()
    await event.wait()
    return "ok"


async def poll_a_thread(ctx: Any, url: str) -> Any:
    results = list[str]()
    threading.Thread(target=lambda: results.append(_block())).start()
    while not results:
        await asyncio.sleep(1)
    return results[0]


async def use_an_idle_thread(ctx: Any, url: str) -> Any:
    loop, event, work = asyncio.get_running_loop(), asyncio.Event(), queue.Queue[None]()

    def serve() -> None:
        work.get()
        _block()
        loop.call_soon_threadsafe(event.set)

    threading.Thread(target=serve).start()
    await asyncio.sleep(1)
    work.put(None)
    await event.wait()
    return "ok"


OUTSIDE = [
    use_a_thread,
    use_an_executor,
    use_a_durable_thread,
    use_http,
    use_durable_http,
    use_a_process,
    use_a_timer_thread,
    poll_a_thread,
    use_an_idle_thread,
]


@pytest.mark.parametrize("use", OUTSIDE)
@pytest.mark.executes_once
def test_no_time_passes_while_something_else_works(use: Any, server: str) -> None:
    async def body(ctx: Any) -> list[Any]:
        async with asyncio.timeout(100):
            first = await use(ctx, server)
        async with asyncio.timeout(2 * HOUR):
            await ctx.sleep(HOUR)
        async with asyncio.timeout(100):
            return [first, await use(ctx, server)]

    with harness_of(body) as harness:
        assert harness.push(1) == [["ok", "ok"]]


@pytest.mark.executes_once
def test_what_comes_during_a_look_keeps_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()
    is_there = OutsideWork.is_there

    def come(self: OutsideWork, has_files: bool) -> bool:
        """Work ends between the look at the loop and that at threads."""
        is_outside = is_there(self, has_files)
        if waiting and not is_outside:
            loop, event = waiting.pop()
            loop.call_soon_threadsafe(event.set)
        return is_outside

    monkeypatch.setattr(OutsideWork, "is_there", come)

    async def body(ctx: Any) -> str:
        event = asyncio.Event()
        waiting.append((asyncio.get_running_loop(), event))
        async with asyncio.timeout(HOUR):
            await event.wait()
        return "ended"

    with harness_of(body) as harness:
        start_ms = harness.current_time
        assert harness.push(1) == ["ended"]
        assert harness.current_time == start_ms


def test_a_loop_that_starts_is_no_part_of_the_time_yet() -> None:
    shared = Clock()
    # Its thread starts after all of its attributes are set, and other loops of the clock look at it before.
    starting = AgentLoop.__new__(AgentLoop)
    loop = VirtualLoop(shared, starting)
    try:
        assert shared.move_on() is None
        assert not (loop.has_runs or loop.is_at_rest)
    finally:
        loop.close()


@pytest.mark.executes_once
def test_a_thread_of_a_def_action_waits_for_a_retry_in_virtual_time() -> None:
    def flaky() -> str:
        CALLS.append("attempt")
        if len(CALLS) < 3:
            raise ConnectionError("again")
        return "ok"

    class Blocking(Agent):
        @action(InputEvent)
        def work(self, event: InputEvent, ctx: Any) -> OutputEvent:
            patient = RetryPolicy(initial_interval=HOUR, max_interval=HOUR)
            return OutputEvent(output=ctx.durable_execute(flaky, retry=patient))

    with OperatorHarness(Blocking(), forced_serialization=False, hang_after=60) as harness:
        assert harness.push(1) == ["ok"]


def test_a_timeout_ends_what_a_thread_does_not() -> None:
    gate = threading.Event()

    class Hanging(Agent):
        @action(InputEvent, timeout=0.2)
        def work(self, event: InputEvent, ctx: Any) -> None:
            gate.wait()

    with OperatorHarness(Hanging(), forced_serialization=False, hang_after=60) as harness:
        with pytest.raises(ActionFailedError, match="timeout"):
            harness.push(1)
        gate.set()


@pytest.mark.executes_once
def test_code_that_looks_at_a_process_while_the_harness_closes_gives_it_time() -> None:
    ends = list[int | None]()

    async def body(ctx: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            process = subprocess.Popen(["sleep", "0.2"])
            looks = 300
            while process.poll() is None and looks:
                await asyncio.sleep(0.01)
                looks -= 1
            ends.append(process.poll())
            process.kill()
            process.wait()

    with OperatorHarness(agent_of(body), auto_run=False, crash=None, forced_serialization=False) as harness:
        harness.push(1)
        _wait_until(lambda: harness.busy)
        harness.advance_time(1000)
    assert ends == [0]


# -- hangs -------------------------------------------------------------------------------


async def _hang_in_queue(ctx: Any) -> None:
    await asyncio.Queue[int]().get()


async def _hang_in_event(ctx: Any) -> None:
    await asyncio.Event().wait()


async def _hang_in_condition(ctx: Any) -> None:
    condition = asyncio.Condition()
    async with condition:
        await condition.wait()


async def _hang_in_semaphore(ctx: Any) -> None:
    await asyncio.Semaphore(0).acquire()


async def _hang_in_lock(ctx: Any) -> None:
    lock = asyncio.Lock()
    await lock.acquire()
    await lock.acquire()


async def _hang_in_call(ctx: Any) -> None:
    await ctx.durable_execute_async(_hang_in_event, None)


async def _hang_in_tasks(ctx: Any) -> None:
    await asyncio.gather(_hang_in_event(ctx), ctx.sleep(HOUR))


HANGS: list[tuple[Body, str]] = [
    (_hang_in_queue, "Queue.get"),
    (_hang_in_event, "Event.wait"),
    (_hang_in_condition, "Condition.wait"),
    (_hang_in_semaphore, "Semaphore.acquire"),
    (_hang_in_lock, "Lock.acquire"),
    (_hang_in_call, "Event.wait"),
    (_hang_in_tasks, "asyncio.gather"),
]


@pytest.fixture
def hangs_are_found_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "HANG_LOOKS", 5)


@pytest.mark.nightly(beyond=5)
@pytest.mark.usefixtures("hangs_are_found_soon")
@pytest.mark.parametrize(("body", "text"), HANGS, ids=[text for _, text in HANGS])
@pytest.mark.parametrize("way", ["push", "run_until_idle", "end_input"])
def test_a_wait_that_nothing_ends_is_named(body: Body, text: str, way: str) -> None:
    with OperatorHarness(
        agent_of(body), auto_run=way == "push", forced_serialization=False, hang_after=60
    ) as harness:
        with pytest.raises(HarnessHangError, match="nothing can end") as caught:
            harness.push(1)
            getattr(harness, way)()
    assert text in str(caught.value)
    assert body.__name__ in str(caught.value)
    first_line = str(caught.value).splitlines()[0]
    assert "test_operator_kit_clock.py:" in first_line and " in _hang_in_" in first_line


@pytest.mark.usefixtures("hangs_are_found_soon")
@pytest.mark.executes_once
def test_threads_of_a_minicluster_hide_no_hang() -> None:
    # As the thread in which py4j answers PyFlink's pings, which sleeps most of the time.
    names = {"__name__": "py4j.java_gateway", "time": time, "stop": threading.Event()}
    exec("def serve():\n    while not stop.is_set():\n        time.sleep(0.05)", names)
    thread = threading.Thread(target=cast("Callable[[], None]", names["serve"]))
    thread.start()
    try:
        with OperatorHarness(agent_of(_hang_in_event), forced_serialization=False, hang_after=60) as harness:
            with pytest.raises(HarnessHangError, match="nothing can end"):
                harness.push(1)
    finally:
        cast("threading.Event", names["stop"]).set()
        thread.join()


def _work_in_a_timer(work: Callable[[], None]) -> None:
    threading.Timer(0.5, work).start()


def _work_in_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=lambda: (time.sleep(0.5), work())).start()


def _work_in_a_former_thread(work: Callable[[], None]) -> None:
    FORMER.append(work)


def _work_in_a_task(work: Callable[[], None]) -> None:
    async def wait() -> None:
        # No run waits for this task, and no thread is seen to work.
        await asyncio.wrap_future(future)
        work()

    future: Future[None] = Future()
    FORMER.append(lambda: future.set_result(None))
    CALLS.append(asyncio.get_running_loop().create_task(wait(), context=contextvars.Context()))


FORMER: list[Callable[[], None]] = []


@pytest.mark.usefixtures("hangs_are_found_soon")
@pytest.mark.parametrize(
    "work", [_work_in_a_timer, _work_in_a_thread, _work_in_a_former_thread, _work_in_a_task]
)
@pytest.mark.executes_once
def test_a_wait_that_something_may_end_is_no_hang(work: Callable[[Callable[[], None]], None]) -> None:
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            time.sleep(0.5)
            while FORMER:
                FORMER.pop()()

    async def body(ctx: Any) -> str:
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        work(lambda: loop.call_soon_threadsafe(event.set) and None)
        await event.wait()
        return "done"

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with harness_of(body) as harness:
            assert harness.push(1) == ["done"]
    finally:
        stop.set()
        thread.join()


def test_an_event_that_the_test_sets_later_is_no_hang_without_auto_run() -> None:
    gates = list[tuple[asyncio.AbstractEventLoop, asyncio.Event]]()

    async def body(ctx: Any) -> str:
        gates.append((asyncio.get_running_loop(), asyncio.Event()))
        await gates[0][1].wait()
        return "done"

    with OperatorHarness(
        agent_of(body), auto_run=False, forced_replay=False, forced_restart=False, forced_serialization=False
    ) as harness:
        harness.push(1)
        _wait_until(lambda: bool(gates))
        loop, event = gates[0]
        loop.call_soon_threadsafe(event.set)
        assert harness.run_until_idle() == ["done"]
