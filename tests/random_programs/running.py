"""Runs a program without a crash and with some, and replays its records."""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from flink_agents.api.action_state import JournalKey, Record
from flink_agents.api.errors import StoreError
from flink_agents.api.events.approvals import APPROVAL_SIGNAL, ApprovalRequest, Decision, wait_of_request
from flink_agents.api.events.signals import Signal
from flink_agents.runtime.execution import loop_executor
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Choose, Fault
from flink_agents.testing.harness import Snapshot
from tests.random_programs import constructs as constructs, oracle
from tests.random_programs.agents import agent
from tests.random_programs.lagging import lagging
from tests.random_programs.oracle import Outcome
from tests.random_programs.programs import KEYS, LEFT_OUT, Input, Program, program, waiting_program
from tests.random_programs.stores import RandomFaults
from tests.random_programs.world import World, freeze

CANCEL_SECONDS = 120.0
"""How long the task of an attempt may take to end, if a loaded machine lets it wait for a processor."""

CRASHES = 2
"""How many of its crash points are tried of one program; which ones, the seed says."""

SETTLE_SECONDS = 20.0
"""How long a program may stand still, on a quiet machine: see :class:`Patience`."""

SETTLE_LOOK_SECONDS = 0.002
"""How long one look at a program that settles waits for it."""

REST_LOOK_SECONDS = 0.01
"""How long one look at a program that pauses waits for it."""


class ProgramFailed(AssertionError):
    """A program did something that it must not."""


@dataclass(frozen=True)
class Crash:
    """Where and how a program crashes.

    Attributes:
        point: Number of the append, or of the wait.
        fault: What becomes of the append; None where it is a wait.
        checkpoint: Behind how many inputs the checkpoint is taken, if the crash is not before it.
        settled: Whether what came before the checkpoint is committed in it.
        reordered: Whether inputs of a key come again in another order.
        order: Seed of that order, and of how long things take.
    """

    point: int
    fault: Fault | None
    checkpoint: int
    settled: bool
    reordered: bool
    order: int

    def choose(self, asked: int, journal: JournalKey, records: Sequence[Record]) -> Fault | None:
        """The fault of an append."""
        return self.fault if asked == self.point else None

    def repeat_inputs(self, inputs: Sequence[Input]) -> list[Input]:
        """Inputs in the order in which they come again: each source, or each key, keeps its own."""
        chance = random.Random(self.order)
        queues: dict[object, list[Input]] = {}
        for program_input in inputs:
            queues.setdefault(
                (program_input.key, program_input.source) if self.reordered else program_input.key, []
            ).append(program_input)
        order: list[Input] = []
        while remaining_queues := [queue for queue in queues.values() if queue]:
            order.append(chance.choice(remaining_queues).pop(0))
        return order

    def __str__(self) -> str:
        where = f"append {self.point} ({self.fault.value})" if self.fault else f"wait {self.point}"
        settled = ", all before it committed" if self.settled else ""
        order = "any order of sources" if self.reordered else "the order of each key"
        return f"crash at {where}, checkpoint before input {self.checkpoint}{settled}, {order} ({self.order})"


class Patience:
    """Runs out when a program has not moved for many looks.

    Looks are counted, not seconds: a machine that is loaded, or stops for a while, slows both down.

    Args:
        looks: How many looks.
        position: How far the program is; it has moved if this differs from before.
    """

    def __init__(self, looks: int, position: Callable[[], object]) -> None:
        self._position = position
        self._last = position()
        self._looks = self._remaining = looks

    def runs_out(self) -> bool:
        """Note a look; return True if it was the last one."""
        position = self._position()
        self._remaining = self._remaining - 1 if position == self._last else self._looks
        self._last = position
        return self._remaining <= 0


class Runner:
    """One harness for all programs: to compile an agent takes longer than to run one of them.

    Args:
        seconds: How long a program may stand still.
        waits: Whether programs pause, wait for signals, and send events with a delay.
        overtakes: Whether inputs overtake the runs that do.
        lags: Whether Flink's thread lags behind the agent loop, which :func:`run` sees to.
    """

    def __init__(
        self,
        seconds: float = SETTLE_SECONDS,
        waits: bool = False,
        overtakes: bool = False,
        lags: bool = False,
    ) -> None:
        self.seconds = seconds
        self.lags = lags
        self.overtakes = overtakes
        self.waits = waits
        self.faults = RandomFaults()
        self.harness = OperatorHarness(
            agent(waits, overtakes),
            lambda record: record[0],
            store=lambda: self.faults.store(),
            auto_run=False,
            forced_serialization=False,
            forced_replay=False,
            forced_restart=False,
            crash=None,
            # A crash may freeze the loop while a test lets time pass.
            hang_after=1,
            # What hangs is the process that dies: nobody waits for it.
            config={"action-state.shutdown-grace": "10 ms"},
        )
        self._empty = self.harness.snapshot()
        self._signals: list[Signal] = []

    def begin(self, seed: int, choose: Choose | None = None) -> OperatorHarness:
        """The harness, with nothing in it and an empty store."""
        World.forget(seed)
        self._signals = []
        self.faults = RandomFaults(choose)
        self.harness.reorder = None
        self.harness.restore(self._empty)
        return self.harness

    def plain(self, inputs: Sequence[Input], seed: int) -> Outcome:
        """Run a program without a crash."""
        harness = self.begin(seed)
        for program_input in inputs:
            harness.push(program_input.record)
        self._end()
        return oracle.observed(harness)

    def replay(self, order: Sequence[Input]) -> Outcome:
        """Run it once more from all that was recorded, but the ends of whole actions."""
        freeze()
        stored = self.faults.stored()
        self.faults = RandomFaults(None, self.faults.without_ends())
        self.harness.restore(self._empty)
        World.next_phase(stored)
        for program_input in order:
            self.harness.push(program_input.record)
        self._end()
        return oracle.observed(self.harness)

    def crashed(self, inputs: Sequence[Input], crash: Crash) -> Outcome:
        """Run a program with a crash, and what is left of it from the checkpoint on."""
        harness = self.begin(crash.order, crash.choose)
        if crash.fault is None:
            World.hangs_at, World.freezes = crash.point, bool(crash.order % 2)
        snapshots = [harness.snapshot()]
        with contextlib.suppress(StoreError):
            self._until_crash(inputs, crash, snapshots)
        snapshot = snapshots[-1]
        freeze()
        noted = [record for record, _ in harness.noted[: snapshot.inputs]]
        noted_names = {record[1] for record in noted if isinstance(record, tuple)}
        sent = len(noted) - len(noted_names)
        harness.restore(snapshot)
        self.faults.choose = None
        World.next_phase(self.faults.stored())
        harness.advance_time(World.chance.choice((0, 3)))
        for program_input in crash.repeat_inputs(
            [repeated_input for repeated_input in inputs if repeated_input.name not in noted_names]
        ):
            harness.push(program_input.record)
        for signal in self._repeated_signals(sent):
            # The stream of signals comes again as well.
            if World.chance.random() < 0.5:
                self._rests()
            self._send(signal)
        self._end()
        return oracle.observed(harness)

    def _repeated_signals(self, sent: int) -> list[Signal]:
        """The signals behind the first ``sent``, which come again."""
        behind = self._signals[sent:]
        del self._signals[sent:]
        return behind

    def _end(self) -> None:
        """Let all runs end: time passes, and what they wait for is answered."""
        if not self.waits:
            self._run_until_idle(lambda: False)
            return
        patience = self._patience(REST_LOOK_SECONDS)
        while not patience.runs_out():
            rests = self._rests()
            if not self._go_on() and rests:
                oracle.check_approvals(self.harness)
                return
        self.harness.run_until_idle(SETTLE_LOOK_SECONDS)
        raise TimeoutError(f"runs wait on: {[self.harness.waits(key) for key in KEYS]}")

    def _patience(self, look_seconds: float) -> Patience:
        """The patience with the program that runs now."""
        return Patience(round(self.seconds / look_seconds), self._position)

    def _position(self) -> object:
        """How far the program is: what it has done, and what it waits for."""
        done = len(self.faults.appends), World.waits, World.effects.total(), len(self.harness.outputs)
        waits = [(self.harness.waits(key), self.harness.delayed(key)) for key in KEYS] if self.waits else []
        return done, waits

    def _rests(self) -> bool:
        """Let runs go on for a moment; whether all have ended, or are suspended."""
        try:
            self.harness.run_until_idle(REST_LOOK_SECONDS)
        except TimeoutError:
            return False
        return True

    def _go_on(self) -> bool:
        """Let one thing happen that a run waits for, or an event come; whether there was any."""
        waits = [(key, wait) for key in KEYS for wait in self.harness.waits(key)]
        untimed = [(key, wait) for key, wait in waits if wait.name is not None and wait.deadline is None]
        timed = [wait.deadline for _, wait in waits if wait.deadline is not None]
        timed += [delayed_event.due for key in KEYS for delayed_event in self.harness.delayed(key)]
        # A request for an approval cannot be answered before it has left.
        requests = {wait_of_request(approval.id): approval for approval in self.harness.approvals}
        answers = [answer_to(requests[wait.id]) for _, wait in untimed if wait.id in requests]
        answers += [
            Signal(wait.name, f"said {wait.name}", key, wait.name)
            for key, wait in untimed
            if wait.name not in (None, APPROVAL_SIGNAL)
        ]
        if not (answers or timed):
            return False
        chance = World.chance
        if self._signals and chance.random() < 0.1:
            # An answer that comes twice, or late.
            self._send(chance.choice(self._signals))
        if answers and (not timed or chance.random() < 0.5):
            self._send(chance.choice(answers))
        else:
            # A run whose time has come may have its turn behind another one, which waits for more time.
            now = self.harness.current_time
            self.harness.advance_time(min((at for at in timed if at > now), default=now) - now)
        return True

    def _send(self, signal: Signal) -> None:
        """Send a signal; it comes again after a crash."""
        self._signals.append(signal)
        self.harness.signal(signal.key, signal.name, signal.value, id=signal.id, wait=signal.wait)

    def _until_crash(self, inputs: Sequence[Input], crash: Crash, snapshots: list[Snapshot]) -> None:
        """Run a program up to its crash, and take the checkpoint on the way."""
        for number, program_input in enumerate(inputs):
            if number == crash.checkpoint and number:
                if crash.settled:
                    self._settle()
                if self._died:
                    return
                snapshots.append(self.harness.snapshot())
            self.harness.push(program_input.record)
        self._settle()
        patience = self._patience(REST_LOOK_SECONDS)
        while self.waits and not self._died and not patience.runs_out():
            rests = self._rests()
            if self._died or (not self._go_on() and rests):
                return

    @property
    def _died(self) -> bool:
        return self.faults.hanging.is_set() or World.hanging.is_set()

    def _settle(self) -> None:
        """Let all run to its end, or to something that hangs."""
        if self.waits:
            self._rests()
            return
        self._run_until_idle(lambda: self._died)

    def _run_until_idle(self, died: Callable[[], bool]) -> None:
        """Let all runs end, unless the program dies.

        Raises:
            TimeoutError: The program stands still.
        """
        patience = self._patience(SETTLE_LOOK_SECONDS)
        while not died():
            try:
                self.harness.run_until_idle(SETTLE_LOOK_SECONDS)
            except TimeoutError:
                if patience.runs_out():
                    raise
                continue
            return

    def close(self) -> None:
        """End it."""
        self.harness.close()


def answer_to(request: ApprovalRequest) -> Signal:
    """What somebody says to a request: the same whenever that is."""
    decision, arguments = oracle.decided(request)
    return request.approve(arguments) if decision is Decision.APPROVED else request.deny("denied")


def check(runner: Runner, seed: int) -> int:
    """Run the program with that seed, with crashes; returns how many.

    Raises:
        ProgramFailed: Something did not hold.
    """
    random_program = waiting_program(seed) if runner.waits else program(seed)
    crash: Crash | None = None
    try:
        plain = runner.plain(random_program.inputs, seed)
        oracle.check_taken(random_program, plain)
        appends = len(runner.faults.appends)
        waits = World.waits
        _check_replay(runner, random_program, plain)
        chance = random.Random(seed)
        points = chance.sample(range(appends + waits), min(CRASHES, appends + waits))
        if points and chance.random() < 0.3:
            # Little is recorded then, and much is under way.
            points[0] = chance.choice((*range(min(appends, 3)), *range(appends, appends + min(waits, 5))))
        crashes = [_crash_at(chance, random_program, point, appends) for point in points]
        if random_program.learned_early and appends:
            # The outside may have learned of the first run, although nothing is recorded of it.
            crashes.append(Crash(0, Fault.REFUSED, 0, False, True, chance.getrandbits(16)))
        for crash in crashes:
            outcome = runner.crashed(random_program.inputs, crash)
            oracle.check_taken(random_program, outcome)
            # Who overtakes whom is a matter of time, and what is not recorded may be so otherwise.
            if random_program.calm and not runner.overtakes:
                oracle.check_calm(random_program, plain, outcome, not crash.reordered)
            _check_replay(runner, random_program, outcome)
    except Exception as error:
        where = str(crash) if crash is not None else "no crash"
        raise ProgramFailed(
            f"program {seed} failed: {where}\n{random_program}\n{type(error).__name__}: {error}\n"
            f"again: python -m tests.random_programs --programs 1 --seed {seed}"
            + (" --overtake" if runner.overtakes else " --waits" if runner.waits else "")
            + (" --lag" if runner.lags else "")
        ) from error
    return len(crashes)


def _crash_at(chance: random.Random, made: Program, point: int, appends: int) -> Crash:
    fault = chance.choice(list(Fault)) if point < appends else None
    at = point if fault is not None else point - appends
    checkpoint = chance.randint(0, len(made.inputs) - 1)
    return Crash(at, fault, checkpoint, chance.random() < 0.4, chance.random() < 0.5, chance.getrandbits(16))


def _check_replay(runner: Runner, made: Program, before: Outcome) -> None:
    """See that the world has nothing to complain of, and that a replay of the journal is the same."""
    oracle.check_world(made)
    transcripts = oracle.last_attempts()
    named = {program_input.name: program_input for program_input in made.inputs}
    order = [named[name] for names in before.order.values() for name in names]
    again = runner.replay(order)
    oracle.check_world(made)
    if not runner.overtakes:
        oracle.check_replay(transcripts, before, again, oracle.last_attempts())
    oracle.check_taken(made, again)


def run(
    programs: int,
    seed: int,
    seconds: float = SETTLE_SECONDS,
    left_out: Collection[str] = frozenset(),
    waits: bool = False,
    overtakes: bool = False,
    lags: bool = False,
) -> int:
    """Check ``programs`` programs from ``seed`` on; returns the number of crashes.

    Args:
        programs: How many.
        seed: Seed of the first one.
        seconds: How long one may stand still.
        left_out: Kinds of calls and operations that they do without.
        waits: Whether they pause, and wait for signals.
        overtakes: Whether inputs overtake the runs that do.
        lags: Whether Flink's thread lags behind the agent loop.
    """
    _leave_out(left_out, overtakes)
    with listening(), lagging(lags):
        runner = Runner(seconds, waits, overtakes, lags)
        try:
            return sum(check(runner, number) for number in range(seed, seed + programs))
        finally:
            runner.close()


def _leave_out(left_out: Collection[str], overtakes: bool) -> None:
    LEFT_OUT.clear()
    LEFT_OUT.update(left_out)
    if overtakes:
        # It notes that it is cancelled. Where a replay is set aside, the run goes on behind that.
        LEFT_OUT.add("left to others")


def first_failure(
    programs: int,
    seed: int,
    seconds: float = SETTLE_SECONDS,
    left_out: Collection[str] = frozenset(),
    waits: bool = False,
    overtakes: bool = False,
) -> tuple[int, ProgramFailed] | None:
    """The first of some programs that fails, as its seed and why; None where none does. As :func:`run`."""
    at = seed
    _leave_out(left_out, overtakes)
    with listening():
        runner = Runner(seconds, waits, overtakes)
        try:
            for at in range(seed, seed + programs):
                check(runner, at)
        except ProgramFailed as failed:
            return at, failed
        finally:
            runner.close()
    return None


class _Listener(logging.Handler):
    """Complains of tasks that outlive their attempt; all else that is logged is of programs that fail."""

    def emit(self, record: logging.LogRecord) -> None:
        """Look at what is logged."""
        if "did not end when it was cancelled" in record.msg:
            World.complaints.append(record.getMessage())


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Hear what the runtime logs, and let nobody else hear it."""
    listener = _Listener()
    ours = logging.getLogger("flink_agents")
    asyncios = logging.getLogger("asyncio")
    previous_settings = ours.propagate, asyncios.disabled
    cancel_seconds = loop_executor.CANCEL_SECONDS
    ours.addHandler(listener)
    ours.propagate = False
    asyncios.disabled = True
    loop_executor.CANCEL_SECONDS = CANCEL_SECONDS
    try:
        yield
    finally:
        ours.removeHandler(listener)
        ours.propagate, asyncios.disabled = previous_settings
        loop_executor.CANCEL_SECONDS = cancel_seconds
