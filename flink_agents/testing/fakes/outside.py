"""The world outside of an operator, as recorded in an execution without a crash.

During recording, the functions of durable steps are called, and their results and errors are kept. During a
repetition, they are not called: each returns its earlier answer, in the same order, and no sooner than before
if a timer may decide. So an execution with a crash differs from the one without it only by the crash, and
effects happen once.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flink_agents.api.action_state import JournalKey, Record, RecordKind
from flink_agents.api.common.current import current_action_run
from flink_agents.api.durable import DurableCallable
from flink_agents.api.errors import AgentsError
from flink_agents.runtime.concurrency.bridge import cancelled_from_outside
from flink_agents.runtime.execution.calls.arguments import encode_arguments
from flink_agents.runtime.execution.environment import Durable
from flink_agents.runtime.execution.sub_agents.sub_agent_run import SubAgentRun
from flink_agents.runtime.journal.calls import action_path, step_name, task_of
from flink_agents.runtime.journal.records import CallRecord
from flink_agents.runtime.serde.codec import ValueCodec

LOOK_SECONDS = 0.001
"""Interval in which a waiting answer checks if it is its turn."""

GLANCE_SECONDS = 0.05
"""Maximum interval in which a waiting answer checks if its caller still waits."""

TURN_SECONDS = 0.25
"""Time that an answer waits for an earlier one that may never come."""

SHORT_SECONDS = 0.002
"""A function that took less time answers at once."""

MadeCall = tuple[str, int, str, str, bytes]
"""Identifies a call: key, number of the run, action, function, digest of the arguments."""

Execution = tuple[int, int]
"""One attempt of an action, also of a sub-agent's: sequence number of the run, and the attempt's identity."""


@dataclass
class RecordedAnswer:
    """The result or the exception of a function of a durable call.

    Attributes:
        attempt: The recorded attempt of a sub-agent's action that made the call; empty for none.
        order: Number of functions that had ended before it.
        seconds: Its duration in seconds.
        value: Its result.
        error: Its exception; None if it returned.
    """

    attempt: str
    order: int
    seconds: float
    value: Any = None
    error: BaseException | None = None

    def return_or_raise(self) -> Any:
        """Return a copy of the result, or raise a copy of the exception."""
        if self.error is not None:
            raise _copy_value(self.error).with_traceback(None)
        return _copy_value(self.value)


class AnswerLog:
    """Records the answers of functions, and repeats them in their order.

    Args:
        codec: Encodes the arguments of calls.

    Attributes:
        repeats: True to return recorded answers, False to call functions and record their answers.
        ordered: True if inputs come in the recorded order, so that runs and answers have the same numbers.
        timed: True if each answer takes as long as it did when it was recorded.
    """

    def __init__(self, codec: ValueCodec) -> None:
        self._codec = codec
        self._lock = threading.Lock()
        self._answers: dict[tuple[MadeCall, int], list[RecordedAnswer]] = {}
        self._answers_by_call: Counter[tuple[MadeCall, int, str]] = Counter()
        self._given: set[int] = set()
        self._call_counts: defaultdict[MadeCall, Counter[Execution]] = defaultdict(Counter)
        self._executed: defaultdict[MadeCall, defaultdict[Execution, set[int]]] = _empty_sets()
        self._steps: list[Any] = []
        self._orders = 0
        self._most_made: dict[MadeCall, int] = {}
        self._dead = threading.Event()
        self.repeats = False
        self.ordered = True
        self.timed = False

    # -- modes -------------------------------------------------------------------------

    def go_on(self, forget: bool) -> None:
        """Call functions from now on, and record their answers.

        Args:
            forget: True to forget the recorded answers, since no call can need them.
        """
        self.repeats = False
        self._begin_execution()
        if forget:
            self._answers = {}
            self._orders = 0
            self._most_made = {}
            self.timed = False

    def release_answers(self) -> None:
        """End all waits for answers: the operator has crashed, and nothing takes them."""
        self._dead.set()

    def end_recording(self, timed: bool) -> None:
        """Stop recording answers.

        Args:
            timed: True if a timeout of the agent may have influenced the result.
        """
        deliveries = [step.delivery for step in self._steps]
        fired = any(delivery.fired for delivery in deliveries if delivery is not None)
        # The plan of the job does not show the actions of sub-agents.
        limited = any(step.action.settings.timeout is not None for step in self._steps)
        self.timed = self.timed or timed or fired or limited
        self._most_made = {call_key: _in_all_runs(counts) for call_key, counts in self._call_counts.items()}

    @property
    def has_answers(self) -> bool:
        """True if there are answers of calls that were in flight when the last execution ended."""
        return bool(self._answers)

    def repeat_answers(self, stored: Counter[MadeCall]) -> None:
        """Repeat the recorded answers from now on. Calls in ``stored`` have records, and need none."""
        self.repeats = True
        self._begin_execution()
        with self._lock:
            for (call_key, number), answers in self._answers.items():
                if number < stored[call_key]:
                    self._given.update(answer.order for answer in answers)

    def repeated_functions(self, stored: Counter[MadeCall]) -> list[str]:
        """Return the functions that were called after the crash although all of their calls are stored."""
        functions: list[str] = []
        for call_key, count in stored.items():
            executions = self._executed.get(call_key, {})
            again = _in_all_runs({execution: len(calls) for execution, calls in executions.items()})
            if again and again + count > self._most_made.get(call_key, 0):
                functions.append(call_key[3])
        return functions

    def stored_among(self, appended: Iterable[tuple[JournalKey, Iterable[Record]]]) -> Counter[MadeCall]:
        """Count the calls among appended records; empty if a record declares earlier ones void."""
        stored: Counter[MadeCall] = Counter()
        for journal, records in appended:
            for record in records:
                if record.kind is RecordKind.RERUN:
                    return Counter()
                if record.kind is RecordKind.CALL:
                    call = CallRecord.unpack(self._codec, record.data).call
                    # Actions make calls, in any of their tasks.
                    step, task = task_of(record.step)
                    step_key = (journal.key, self._run_number(record.seq), step_name(step, action_path(task)))
                    stored[(*step_key, call.function, call.arguments)] += 1
        return stored

    def _run_number(self, seq: int) -> int:
        """Return the number that identifies a run; None if the next attempt may give it to another run."""
        return seq if self.ordered else -1

    def _begin_execution(self) -> None:
        self._dead.clear()
        with self._lock:
            self._answers_by_call.clear()
            self._given.clear()
            self._call_counts.clear()
            self._executed.clear()
            self._steps.clear()

    # -- calls ------------------------------------------------------------------------------

    def wrap_callable(
        self, step: Any, what: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> DurableCallable:
        """Return a durable callable with a function that records its answer, or repeats the recorded one.

        Args:
            step: The execution of the action that makes the call.
            what: The callable.
            args: Its arguments, by which the call is identified.
            kwargs: Its keyword arguments.
        """
        try:
            _, called = encode_arguments(self._codec, what, args, kwargs)
        except AgentsError:
            return what  # The runtime rejects it.
        run = step.run
        attempt: Any = current_action_run.get() or step
        end = attempt.run.attempt_end if isinstance(attempt.run, SubAgentRun) else None
        call_key = (
            run.key_text,
            self._run_number(run.sequence_number),
            step_name(step.path, "" if end is None else end.path),
            called.function,
            called.arguments,
        )
        # A recorded attempt is the same one in each execution; a replay may skip it if it failed.
        attempt_name = "" if end is None else end.attempt
        execution = (run.sequence_number, id(attempt))
        with self._lock:
            # As long as they exist, no other objects have their ids.
            self._steps += [step] if attempt is step else [step, attempt]
            number = self._call_counts[call_key][execution]
            self._call_counts[call_key][execution] += 1
        call = _Call(self, call_key, number, attempt_name, execution)
        function: Callable[..., Any] = call.awaited(what) if what.is_async else call.called(what)
        return replace(what, function=function, name=what.identity)

    def note_start(self, call: _Call) -> RecordedAnswer | None:
        """Note that the function of a call starts; return the answer to repeat, or None to call it.

        Each attempt gets its own answers in order, and then the last one again.
        """
        call_key = call.call_key
        with self._lock:
            self._executed[call_key][call.execution].add(call.number)
            if not self.repeats:
                return None
            answers = self._answers.get((call_key, call.number), [])
            of_earlier_attempts = sum(
                _attempt_numbers(answer.attempt) < _attempt_numbers(call.attempt) for answer in answers
            )
            index = of_earlier_attempts + self._answers_by_call[call_key, call.number, call.attempt]
            self._answers_by_call[call_key, call.number, call.attempt] += 1
            # A replay may skip the attempts that got the answers before this one, so nothing gives them.
            self._given.update(answer.order for answer in answers[:index])
            return answers[min(index, len(answers) - 1)] if answers else None

    def note_answer(self, call: _Call, seconds: float, value: Any, error: BaseException | None) -> None:
        """Record how the function of a call ended.

        Args:
            call: The call.
            seconds: Duration in seconds.
            value: The result.
            error: The exception; None if it returned.
        """
        with self._lock:
            if not self.repeats:
                answer = RecordedAnswer(call.attempt, self._orders, seconds, _copy_value(value), error)
                self._answers.setdefault((call.call_key, call.number), []).append(answer)
                self._orders += 1

    def pauses_before(self, answer: RecordedAnswer, limit: float | None) -> Iterator[float]:
        """Yield pauses in seconds until an answer is due, or the operator has crashed.

        Args:
            answer: The answer to repeat.
            limit: The call's timeout in seconds; None without one.
        """
        started = now = time.monotonic()
        # If time cannot influence the result, only the order of answers counts.
        counts_time = self.timed or (limit is not None and answer.seconds >= limit)
        due = started + answer.seconds if answer.seconds > SHORT_SECONDS else started
        while now < due + TURN_SECONDS and not self._dead.is_set():
            if counts_time and now < due:
                yield min(due - now, GLANCE_SECONDS)
            elif not self._is_next(answer):
                yield LOOK_SECONDS
            else:
                return
            now = time.monotonic()

    def _is_next(self, answer: RecordedAnswer) -> bool:
        """Return True if all answers with lower numbers were returned."""
        with self._lock:
            return not self.ordered or all(
                other_answer.order in self._given
                for answers in self._answers.values()
                for other_answer in answers
                if other_answer.order < answer.order
            )

    def note_returned(self, answer: RecordedAnswer) -> None:
        """Note that an answer was returned, so that the next one may be."""
        with self._lock:
            self._given.add(answer.order)


@dataclass(frozen=True)
class _Call:
    """One durable call whose function is recorded or repeated.

    Attributes:
        outside: Records or repeats it.
        call_key: What identifies it, except for its number.
        number: Its number among calls with the same key in its execution.
        attempt: The recorded attempt of a sub-agent's action that makes it; empty for none.
        execution: The execution of the action that makes it.
    """

    outside: AnswerLog
    call_key: MadeCall
    number: int
    attempt: str
    execution: Execution

    def awaited(self, what: DurableCallable) -> Callable[..., Awaitable[Any]]:
        """Return the function for the agent loop: a coroutine function that records or repeats."""

        @functools.wraps(what.function)
        async def function(*args: Any, **kwargs: Any) -> Any:
            answer = self.outside.note_start(self)
            if answer is None:
                return await self._record_result(functools.partial(what.function, *args, **kwargs))
            for pause in self.outside.pauses_before(answer, what.seconds):
                await asyncio.sleep(pause)
            self.outside.note_returned(answer)
            return answer.return_or_raise()

        return function

    async def _record_result(self, function: Callable[[], Awaitable[Any]]) -> Any:
        began = time.monotonic()
        try:
            value = await function()
        except BaseException as error:
            if cancelled_from_outside(error):
                raise  # No answer came.
            self.outside.note_answer(self, time.monotonic() - began, None, error)
            raise
        self.outside.note_answer(self, time.monotonic() - began, value, None)
        return value

    def called(self, what: DurableCallable) -> Callable[..., Any]:
        """Return the function for a thread: it records or repeats, and blocks for pauses."""

        @functools.wraps(what.function)
        def function(*args: Any, **kwargs: Any) -> Any:
            answer = self.outside.note_start(self)
            if answer is not None:
                for pause in self.outside.pauses_before(answer, what.seconds):
                    time.sleep(pause)
                self.outside.note_returned(answer)
                return answer.return_or_raise()
            began = time.monotonic()
            try:
                value = what.function(*args, **kwargs)
            except BaseException as error:
                self.outside.note_answer(self, time.monotonic() - began, None, error)
                raise
            if inspect.isawaitable(value):
                # The answer comes when the runtime awaits it, which works only once.
                return self._record_result(lambda: value)
            self.outside.note_answer(self, time.monotonic() - began, value, None)
            return value

        return function


class OutsideCalls:
    """Makes durable calls whose functions are recorded or repeated by an :class:`AnswerLog`.

    Args:
        inner: Makes the calls.
        outside: Records or repeats their functions.
    """

    def __init__(self, inner: Durable, outside: AnswerLog) -> None:
        self._inner = inner
        self._outside = outside

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def call(
        self, step: Any, what: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Coroutine[Any, Any, Any]:
        """Return the coroutine of a durable call for an action that runs on the agent loop."""
        return self._inner.call(step, self._outside.wrap_callable(step, what, args, kwargs), args, kwargs)

    def call_from_thread(
        self, step: Any, what: DurableCallable, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Make a durable call for an action in a thread, and block until it ends."""
        return self._inner.call_from_thread(
            step, self._outside.wrap_callable(step, what, args, kwargs), args, kwargs
        )


def _empty_sets() -> defaultdict[MadeCall, defaultdict[Execution, set[int]]]:
    return defaultdict(lambda: defaultdict(set))


def _attempt_numbers(name: str) -> list[int]:
    """Parse the name of an attempt: its number, after those of the attempts around it, outermost first."""
    return [int(number) for number in name.split(".")] if name else []


def _in_all_runs(counts: Mapping[Execution, int]) -> int:
    """Return the sum over runs of the largest number of calls in one execution of the run."""
    most: dict[int, int] = {}
    for (run, _), count in counts.items():
        most[run] = max(count, most.get(run, 0))
    return sum(most.values())


def _copy_value(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception:
        return value  # Such a result cannot be recorded either.
