"""Generates programs: inputs, and for each a tree of the operations of its action.

An operation is a list of its kind and what belongs to it; a block is a list of operations, and the
operations that make tasks have blocks as branches. A *calm* program comes to the same however
calls and timers take turns, so that one with a crash is compared with one without. In a *wild*
one all may depend on that; what was recorded says what it has to come to.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

KEYS = ("a", "b", "c")
FORMS = ("async", "async", "async", "retried", "def", "def retried", "yields")
"""Kinds of actions that take inputs."""

LEFT_OUT: set[str] = set()
"""Kinds of calls and operations that programs do without."""

Op = list[Any]
Block = list[Op]

CALLS = ("def", "async", "async", "flaky", "changing", "reconciled", "loose", "now")
STEADY_CALLS = (*CALLS, "keyed", "keyed")
"""Calls where the number of calls before them cannot differ; a service with keys looks at these."""
FIRST_CALLS = ("token", "number", "event")
"""Calls with tokens, which an action makes up in the order in which it asks for them."""
EARLY_CALLS = ("keyed", *FIRST_CALLS)
"""Calls by which the outside learns of the run that makes them."""
FAILING = ("fails", "fails async", "fails strangely")
MEMORY = (
    ["set", "x"],
    ["set", "y.z"],
    ["set", "last"],
    ["append"],
    ["delete", "x"],
    ["read", "x"],
    ["read", "last"],
)

SIMPLE = ("gather", "ctx gather", "group", "wait all", "tasks", "shield", "generator", "ask", "ask")
"""Constructs whose result does not depend on which branch is faster."""
CERTAIN = ("expires", "in time", "cancel never")
"""Timers and cancellations that come to the same each time."""
ORDERLY = ("lock", "semaphore", "event", "condition", "queue", "barrier")
RACY = (
    "first",
    "first exception",
    "wait timeout",
    "as completed",
    "set order",
    "cancel",
    "timeout",
    "wait for",
    "shield in time",
    "left to others",
    "returning",
    "group failing",
    "try",
    "reraise",
    "ctx gather failing",
    "join",
)


@dataclass(frozen=True)
class Input:
    """One input.

    Attributes:
        key: Its key.
        name: Its name; no two of a program are the same.
        source: Of which source it comes: a source keeps its order after a restart.
        form: Which action takes it.
        ops: What that does.
    """

    key: str
    name: str
    source: int
    form: str
    ops: Block

    @property
    def record(self) -> tuple[Any, ...]:
        """What the operator gets."""
        return (self.key, self.name, self.form, self.ops)


@dataclass(frozen=True)
class Program:
    """A program.

    Attributes:
        seed: What it was made from.
        calm: Whether it comes to the same however calls take turns.
        inputs: Its inputs.
    """

    seed: int
    calm: bool
    inputs: tuple[Input, ...]

    @property
    def has_independent_inputs(self) -> bool:
        """Whether no input sees what another one did."""
        return not any(
            op[0] in ("set", "append", "delete", "read", "emit")
            for program_input in self.inputs
            for op in _all_operations(program_input.ops)
        )

    @property
    def learned_early(self) -> bool:
        """Whether the outside learns of runs before anything of them is recorded."""
        return any(
            program_input.ops[0][0] == "call" and program_input.ops[0][1] in EARLY_CALLS
            for program_input in self.inputs
        )

    @property
    def showing_tokens(self) -> set[str]:
        """Inputs that put out what follows from a token that they made up, not only pass it to calls."""
        return {
            program_input.name
            for program_input in self.inputs
            if any(op[0] == "uuid" for op in _all_operations(program_input.ops))
        }

    def __str__(self) -> str:
        lines = ["a calm program" if self.calm else "a wild program"]
        for input_ in self.inputs:
            lines.append(
                f"  input {input_.name} of key {input_.key!r}, source {input_.source}, {input_.form}"
            )
            lines += _lines(input_.ops, "    ")
        return "\n".join(lines)


WAITS = (["nap", 1.0], ["nap", 1.0], ["nap", 5.0], ["listen", None], ["listen", None], ["listen", 4.0])
"""Pauses in seconds, and waits for a signal, with what they wait at most."""

MIXED = 9
"""Each so many-th program has runs of which nothing is recorded among others."""


ASKS = ("ask", "join")
"""Operations that call agents."""

CALLED_AGENTS = ("plain", "plain", "retried", "timed", "between", "between retried")
"""Kinds of called agents: whether their action is tried again, has a timeout, or calls another agent."""


def program(seed: int) -> Program:
    """The program with that seed."""
    maker = _Maker(seed).make()
    chance = random.Random(-17 - seed)
    # A real timeout depends on how fast the machine is.
    left_out = {*LEFT_OUT, "timed"} if maker.calm else LEFT_OUT
    for op in [
        op for program_input in maker.inputs for op in _all_operations(program_input.ops) if op[0] in ASKS
    ]:
        kind = chance.choice([kind for kind in CALLED_AGENTS if kind not in left_out])
        op.append(kind)
        for branch in op[1]:
            if kind.endswith("retried") and chance.random() < 0.8:
                stumbles: Op = list(chance.choice((["stumble"], ["call", "flaky once", False])))
                branch.insert(chance.randint(0, len(branch)), stumbles)
            elif kind == "timed" and chance.random() < 0.5:
                branch.insert(chance.randint(0, len(branch)), ["hang"])
    return maker


APPROVALS = (["approve", None], ["approve", None], ["approve", 4.0])
"""Requests for approvals, with the seconds after which they expire."""

APPROVED = "approved"
"""The form of an action that somebody has to approve."""


def waiting_program(seed: int) -> Program:
    """The program with that seed, with pauses, signals, approvals and delayed events at random places."""
    base_program = program(seed)
    chance = random.Random(-1 - seed)
    for program_input in base_program.inputs:
        blocks = [] if program_input.form.startswith("def") else [program_input.ops]
        blocks += [inner for op in _all_operations(program_input.ops) for inner in _blocks(op)]
        for block in blocks:
            while chance.random() < 0.35:
                block.insert(chance.randint(0, len(block)), list(chance.choice(WAITS)))
    # A timeout comes before the signal or behind it.
    return _sending_later(_asking_people(base_program))


def _asking_people(made: Program) -> Program:
    """A program some of whose inputs have an action that needs an approval, or ask for some as they go on.

    They ask before they make any task: a request leaves when its run is suspended, which does not happen as
    long as another task makes a call, and one that failed may have left a call behind that has no end.
    """
    chance = random.Random(-13 - made.seed)
    inputs: list[Input] = []
    for program_input in made.inputs:
        asks = not program_input.form.startswith("def") and APPROVED not in LEFT_OUT
        if asks and program_input.form == "async" and chance.random() < 0.4:
            program_input = replace(program_input, form=APPROVED)
        makes_tasks = [
            at for at, op in enumerate(program_input.ops) if any(isinstance(part, list) for part in op)
        ]
        while asks and chance.random() < 0.3:
            last = min(makes_tasks, default=len(program_input.ops))
            program_input.ops.insert(chance.randint(0, last), list(chance.choice(APPROVALS)))
        inputs.append(program_input)
    return replace(made, inputs=tuple(inputs))


def _sending_later(made: Program) -> Program:
    """A program some of whose inputs send events with a delay, which call first when they come.

    They stand behind a call, and all have the same delay: so something is recorded of each run that sends,
    and of each that comes of it, and their order is that in which they were sent. Where such a run comes
    before inputs that are read again after a crash, the program comes to something else than without.
    """
    chance = random.Random(-7 - made.seed)
    sends = False
    for program_input in made.inputs:
        calls = [place for place, op in enumerate(program_input.ops) if op[0] == "call"]
        if not calls or "later" in LEFT_OUT or chance.random() < 0.6:
            continue
        inner: Block = [["call", "async", True]]
        for _ in range(chance.randint(0, 2)):
            inner.append(
                list(chance.choice((*MEMORY, *WAITS, ["call", "def", True], ["call", "keyed", True])))
            )
        program_input.ops.insert(chance.choice(calls) + 1, ["later", [[*inner, ["out"]]]])
        sends = True
    return replace(made, calm=False) if sends else made


def _blocks(op: Op) -> Iterable[Block]:
    for inner in op[1:]:
        if isinstance(inner, list):
            yield from (block for block in inner if isinstance(block, list))


def _all_operations(ops: Iterable[Op]) -> Iterable[Op]:
    for op in ops:
        yield op
        for inner in op[1:]:
            if isinstance(inner, list):
                for block in inner:
                    if isinstance(block, list):
                        yield from _all_operations(block)


def _lines(ops: Block, indent: str) -> list[str]:
    lines: list[str] = []
    for number, (kind, *args) in enumerate(ops):
        plain = [str(argument) for argument in args if not isinstance(argument, list)]
        lines.append(f"{indent}{number}: {' '.join([kind, *plain])}")
        for branches in (argument for argument in args if isinstance(argument, list)):
            for at, block in enumerate(branches):
                lines += [f"{indent}  /{at}", *_lines(block, indent + "    ")]
    return lines


class _Maker:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.calm = self.chance.random() < 0.4
        self.left = 0

    def make(self) -> Program:
        chance = self.chance
        if self.seed % MIXED == 0:
            return self.mixed()
        inputs: list[Input] = []
        keys = KEYS[: chance.choice((1, 1, 2, 3))]
        count = chance.randint(1, 4)
        # What the outside learns of a run before anything of it is recorded belongs to its input.
        learns = chance.random() < 0.3
        for number in range(count):
            form = chance.choice(FORMS)
            self.left = 14
            if form.startswith("def"):
                ops = self.plain(form.endswith("retried"), nested=chance.random() < 0.4)
            else:
                ops = self.trunk(form == "retried", depth=3, nested=chance.random() < 0.4)
            if learns:
                ops.insert(0, ["call", self.one_of(EARLY_CALLS), True])
            inputs.append(Input(chance.choice(keys), f"i{number}", chance.randint(0, 1), form, ops))
        return Program(self.seed, self.calm, tuple(inputs))

    def mixed(self) -> Program:
        """Short runs of one key: some write memory and record nothing, others call by what they read."""
        inputs: list[Input] = []
        for number in range(self.chance.randint(3, 5)):
            form = self.chance.choice(("async", "def"))
            ops: Block = [["read", "last"], self.call(STEADY_CALLS), ["out"]]
            if self.chance.random() < 0.6:
                ops = [["set", "last"], ["out"]]
            inputs.append(Input(KEYS[0], f"i{number}", self.chance.randint(0, 1), form, ops))
        return Program(self.seed, self.calm, tuple(inputs))

    # -- blocks -------------------------------------------------------------------------

    def trunk(self, retried: bool, depth: int, nested: bool) -> Block:
        """What an async action does."""
        ops: Block = []
        steady = True
        for _ in range(self.chance.randint(1, 4)):
            drawn = self.chance.random()
            if drawn < 0.25:
                ops.append(self.leaf())
            elif drawn < 0.55 or self.left <= 0:
                # Tokens come out of one sequence, whose order is that of the trunk.
                ops.append(self.call((*STEADY_CALLS, *FIRST_CALLS) if steady else CALLS))
            else:
                ops.append(self.construct(depth, steady))
                steady = steady and ops[-1][0] in (*SIMPLE, *CERTAIN[:1])
        if retried and self.chance.random() < 0.7:
            ops.insert(self.chance.randint(0, len(ops)), ["call", "flaky once", False])
        return self.ending(ops, nested, depth)

    def plain(self, retried: bool, nested: bool) -> Block:
        """What a def action does."""
        ops: Block = []
        for _ in range(self.chance.randint(1, 4)):
            if self.chance.random() < 0.4:
                ops.append(self.leaf(pauses=False))
            else:
                ops.append(self.call((*STEADY_CALLS, *FIRST_CALLS)))
        if retried and self.chance.random() < 0.7:
            ops.insert(self.chance.randint(0, len(ops)), ["call", "flaky once", False])
        return self.ending(ops, nested, 1)

    def ending(self, ops: Block, nested: bool, depth: int) -> Block:
        chance = self.chance
        if nested:
            inner = self.trunk(False, depth - 1, nested=False)
            if any(op[0] == "call" for op in inner) and chance.random() < 0.5 and "spoil" not in LEFT_OUT:
                inner.insert(chance.randint(0, len(inner)), ["spoil"])
            ops.insert(chance.randint(0, len(ops)), ["send", [inner]])
        if chance.random() < 0.12:
            ops.append(["call", self.one_of(FAILING), False])
        elif chance.random() < 0.05:
            ops.append(["raise"])
        ops.append(["emit", chance.choice(("x", "last"))] if chance.random() < 0.5 else ["out"])
        return ops

    def leaf(self, pauses: bool = True) -> Op:
        chance = self.chance
        drawn = chance.random()
        if drawn < 0.5:
            return list(chance.choice(MEMORY))
        if drawn < 0.7 and pauses:
            return list(chance.choice((["pause", 1], ["pause", 3], ["sleep", 0.0], ["sleep", 0.0005])))
        return list(chance.choice((["side"], ["uuid"], ["out"])))

    def call(self, kinds: Iterable[str], caught: bool = True) -> Op:
        self.left -= 1
        if caught and self.chance.random() < 0.2:
            return ["call", self.one_of(FAILING), True]
        return ["call", self.one_of(kinds), True]

    def one_of(self, kinds: Iterable[str]) -> str:
        return self.chance.choice([kind for kind in kinds if kind not in LEFT_OUT])

    # -- constructs -----------------------------------------------------------------------

    def construct(self, depth: int, steady: bool) -> Op:
        chance = self.chance
        kinds: tuple[str, ...] = (*SIMPLE, *CERTAIN)
        if not self.calm:
            kinds = (*kinds, *ORDERLY, *ORDERLY, *RACY, *RACY)
        kind = self.one_of(kinds)
        count = {
            "shield": 1,
            "expires": 1,
            "in time": 1,
            "timeout": 1,
            "wait for": 1,
            "try": 1,
            "reraise": 1,
            "ask": chance.choice((1, 1, 2)),
        }.get(kind, chance.randint(2, 3))
        if kind == "shield in time":
            count = 1
        simple = kind in SIMPLE
        failing = kind in (
            "first exception",
            "returning",
            "group failing",
            "try",
            "reraise",
            "ctx gather failing",
        )
        branches = [
            self.branch(depth - 1, steady and simple, failing or (not self.calm and chance.random() < 0.1))
            for _ in range(count)
        ]
        settings = {
            "first": [chance.choice(("cancel", "await"))],
            "join": [chance.choice((0.0005, 0.001, 60.0))],
            "wait timeout": [chance.choice((0.0, 0.0005, 0.001, 60.0)), chance.choice(("cancel", "await"))],
            "first exception": [chance.choice(("cancel", "await"))],
            "timeout": [chance.choice((0.0, 0.0005, 0.001, 60.0))],
            "wait for": [chance.choice((0.0005, 0.001, 60.0))],
            "semaphore": [2],
        }.get(kind, [])
        op: Op = [kind, branches, *settings]
        # A branch that fails ends what is around it, or not.
        fails = not self.calm and kind not in ("try",)
        return ["try", [[op]]] if fails and chance.random() < 0.7 else op

    def branch(self, depth: int, steady: bool, failing: bool) -> Block:
        chance = self.chance
        ops: Block = []
        for _ in range(chance.randint(1, 3)):
            drawn = chance.random()
            if depth > 0 and drawn < 0.25 and self.left > 0:
                ops.append(self.construct(depth, steady))
                steady = steady and ops[-1][0] in SIMPLE
            elif drawn < 0.35:
                ops.append(
                    list(chance.choice((["pause", 1], ["pause", 2], ["sleep", 0.0], ["sleep", 0.0005])))
                )
            elif drawn < 0.5 and not self.calm:
                ops.append(list(chance.choice((*MEMORY, ["uuid"], ["side"]))))
            else:
                kinds = STEADY_CALLS if steady else CALLS
                ops.append(self.call(tuple(kind for kind in kinds if not self.calm or kind != "loose")))
        if failing and chance.random() < 0.6:
            ops.insert(chance.randint(0, len(ops)), ["call", self.one_of(FAILING), False])
        return ops
