"""Random conversations of an agent, with crashes: ``python -m tests.random_chats --programs 200 --seed 1``.

A program is a list of inputs of two keys, and for each the conversations of its action: with ``ctx.chat`` and
with a Pydantic AI agent, one after the other or concurrently, with and without a history, for a text and for
a type. The program contains the replies of the model: calls of tools of each kind, invalid ones too, invalid
outputs, and rejected requests for which another model takes over.

It runs once without a crash, and then with a crash at some of its appends; all inputs are read again. Then
outputs, transcripts and memory are the same, no recorded effect is repeated, and a request that is sent again
has the same content.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent as ModelAgent
from pydantic_ai.exceptions import ModelHTTPError, ModelRetry
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from flink_agents import (
    Agent,
    ChatModel,
    ConversationHistory,
    InputEvent,
    OutputEvent,
    RunnerContext,
    Tool,
    action,
)
from flink_agents.api.action_state import RecordKind
from flink_agents.models.engine import FlinkDurability
from flink_agents.testing import OperatorHarness
from flink_agents.testing.faults import Choose, Fault, Faults, at_append

KEYS = ("ada", "bo")
CRASHES = 3
"""How many crash points are tried of a program; which ones, its seed says."""

FAULTS = (Fault.REFUSED, Fault.LOST, Fault.UNACKNOWLEDGED)
THEN = datetime(2026, 1, 1, tzinfo=UTC)


class ProgramFailed(AssertionError):
    """A program did something that it must not."""


class Answer(BaseModel):
    text: str


@dataclass(frozen=True)
class Talk:
    """One conversation.

    Attributes:
        name: Its name, by which the model knows what to say.
        turns: What the model says before it answers: names of tools to be called at once; none is an output
            of a wrong type.
        whole: Whether a whole agent of pydantic-ai holds it.
        typed: Whether its output has a type.
        remembered: Whether it goes on with the history of the key.
        refused: Whether the first model refuses its requests.
    """

    name: str
    turns: tuple[tuple[str, ...], ...]
    whole: bool
    typed: bool
    remembered: bool
    refused: bool


@dataclass(frozen=True)
class Program:
    """What happens.

    Attributes:
        talks: All conversations, by their names.
        inputs: Keys, names of conversations, and whether these are held at once.
    """

    talks: dict[str, Talk]
    inputs: tuple[tuple[str, tuple[str, ...], bool], ...]


class World:
    """What the outside knows: nothing takes it back."""

    program = Program({}, ())
    done: Counter[str] = Counter()
    asked: dict[str, str] = {}
    complaints: list[str] = []

    @classmethod
    def begin(cls, program: Program) -> None:
        """Forget all, and let another program begin."""
        cls.program, cls.done, cls.asked, cls.complaints = program, Counter(), {}, []

    @classmethod
    def note(cls, what: str) -> None:
        """Something was done outside."""
        cls.done[what] += 1

    @classmethod
    def hear(cls, what: str, talk: Talk, messages: Sequence[ModelMessage]) -> None:
        """A request came. One that comes again says the same."""
        cls.note(what)
        request_text = written(talk, messages)
        if cls.asked.setdefault(what, request_text) != request_text:
            cls.complaints.append(f"{what} was asked otherwise: {request_text} {cls.asked[what]}")


def written(talk: Talk, messages: Sequence[ModelMessage]) -> str:
    """A transcript; of whole agents without times, which pydantic-ai takes from the clock."""
    text = ModelMessagesTypeAdapter.dump_json(list(messages)).decode()
    return re.sub(r'"timestamp":"[^"]*"', "", text) if talk.whole else text


# -- what the models say -------------------------------------------------------------------


def _place(messages: Sequence[ModelMessage]) -> tuple[Talk, int]:
    """The conversation that messages are of, and how often the model answered in it."""
    answers = 0
    for message in reversed(messages):
        if isinstance(message, ModelResponse):
            answers += 1
            continue
        for part in message.parts:
            if isinstance(part, UserPromptPart) and str(part.content).startswith("talk "):
                return World.program.talks[str(part.content).split()[1]], answers
    raise AssertionError("a request without a name")


def _says(parts: Sequence[Any]) -> ModelResponse:
    usage = RequestUsage(input_tokens=10, output_tokens=len(parts))
    return ModelResponse(list(parts), usage=usage, model_name="any", timestamp=THEN)


async def _answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    talk, number = _place(messages)
    World.hear(f"request {talk.name}.{number}", talk, messages)
    output = info.output_tools[0].name if info.output_tools else None
    if number < len(talk.turns):
        names = talk.turns[number]
        if names:
            place = f"{talk.name}.{number}"
            return _says(
                [
                    ToolCallPart(tool, {"call": f"{place}.{call_number}"}, f"{place}.{call_number}")
                    for call_number, tool in enumerate(names)
                ]
            )
        # An output of a wrong type, or none at all.
        return _says(
            [ToolCallPart(output, {"words": 1}, f"{talk.name}.{number}")] if output else [TextPart("")]
        )
    text = f"answer of {talk.name}"
    return _says([ToolCallPart(output, {"text": text}, "end") if output else TextPart(text)])


async def _answer_or_refuse(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    talk, number = _place(messages)
    if talk.refused:
        World.hear(f"refused {talk.name}.{number}", talk, messages)
        raise ModelHTTPError(400, "first", "no")
    return await _answer(messages, info)


def first() -> Model:
    """A model that refuses some conversations."""
    return FunctionModel(_answer_or_refuse)


def second() -> Model:
    """The one that stands in for it."""
    return FunctionModel(_answer)


# -- tools ---------------------------------------------------------------------------------


async def look(call: str) -> str:
    """Look at something."""
    World.note(f"look {call}")
    return call[::-1]


def stare(call: str) -> dict[str, Any]:
    """Look at something, in a thread."""
    World.note(f"stare {call}")
    return {"seen": call, "at": [1, None, 2.5]}


async def fuss(call: str) -> str:
    """Ask for another call."""
    World.note(f"fuss {call}")
    raise ModelRetry(f"not {call}")


async def effect(call: str) -> str:
    """What a tool of the action does outside."""
    World.note(f"effect {call}")
    return call.upper()


async def act(call: str, ctx: RunnerContext) -> str:
    """Do something as code of the action."""
    done = await ctx.durable_execute_async(effect, call)
    memory = ctx.short_term_memory
    memory.set("acted", [*memory.get("acted", []), f"{done} at {ctx.now().isoformat()}"])
    return await ctx.durable_execute_async(effect, f"{call} again")


OF_CHATS = ("look", "stare", "fuss", "act", "nothing")
OF_AGENTS = ("look", "stare")
whole_text = ModelAgent(
    FunctionModel(_answer), name="text", tools=[look, stare], capabilities=[FlinkDurability()], retries=3
)
whole_typed = ModelAgent(
    FunctionModel(_answer),
    name="typed",
    tools=[look, stare],
    output_type=Answer,
    capabilities=[FlinkDurability()],
    retries=3,
)


class Talker(Agent):
    """Holds the conversations of its inputs."""

    def __init__(self) -> None:
        tools = {"look": look, "stare": stare, "fuss": fuss, "act": act}
        options: dict[str, Any] = {"tools": [*tools], "tool_retries": 99, "output_retries": 99}
        here = __name__
        self.add_resource(
            "first", "chat_model", ChatModel(clazz=f"{here}:first", fallback=["second"], **options)
        )
        self.add_resource("second", "chat_model", ChatModel(clazz=f"{here}:second", **options))
        for name, function in tools.items():
            self.add_resource(name, "tool", Tool(function, name=name))

    @action(InputEvent)
    async def talk(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        key, names, at_once = event.input
        talks = [World.program.talks[name] for name in names]
        if at_once:
            results = await ctx.gather(*[hold(ctx, talk) for talk in talks])
        else:
            results = [await hold(ctx, talk) for talk in talks]
        return OutputEvent(output=[key, results, ctx.short_term_memory.get("acted", [])])


async def hold(ctx: RunnerContext, talk: Talk) -> list[Any]:
    """Hold one conversation; gives its output, what it used, and its transcript."""
    text = f"talk {talk.name}"
    if talk.whole:
        ran: Any = await (whole_typed if talk.typed else whole_text).run(text)
        return [str(ran.output), str(ran.usage), written(talk, ran.all_messages())]
    history: Any = ConversationHistory(max_messages=6) if talk.remembered else ()
    result = await ctx.chat("first", text, output_type=Answer if talk.typed else None, history=history)
    return [str(result.output), str(result.usage), written(talk, result.messages)]


# -- programs ------------------------------------------------------------------------------


def program(seed: int) -> Program:
    """The program of a seed."""
    chance = random.Random(seed)
    talks = dict[str, Talk]()
    inputs = list[tuple[str, tuple[str, ...], bool]]()
    for _ in range(chance.randint(1, 3)):
        at_once = chance.random() < 0.3
        names: list[str] = []
        for _ in range(chance.randint(1, 2)):
            name = f"t{len(talks)}"
            talks[name] = _talk(chance, name, at_once)
            names.append(name)
        inputs.append((chance.choice(KEYS), tuple(names), at_once))
    return Program(talks, tuple(inputs))


def _talk(chance: random.Random, name: str, at_once: bool) -> Talk:
    whole = chance.random() < 0.3
    tools = OF_AGENTS if whole else OF_CHATS
    turns: list[tuple[str, ...]] = []
    for _ in range(chance.randint(0, 3)):
        wrong = chance.random() < 0.15
        turns.append(() if wrong else tuple(chance.choices(tools, k=chance.choice((1, 1, 2, 3)))))
    remembered = not whole and not at_once and chance.random() < 0.5
    return Talk(name, tuple(turns), whole, chance.random() < 0.4, remembered, chance.random() < 0.2)


class Runner:
    """One harness for all programs: to compile an agent takes longer than to run one of them."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.harness = OperatorHarness(
            Talker(),
            lambda record: record[0],
            store=lambda: self.faults.store(),
            forced_serialization=False,
            forced_replay=False,
            forced_restart=False,
            crash=None,
        )
        self._empty = self.harness.snapshot()

    def outcome(self, made: Program, choose: Choose | None = None) -> tuple[list[Any], int, bool]:
        """Run a program; gives its outputs, how much it may do outside, and whether it crashed."""
        World.begin(made)
        self.faults = Faults(choose)
        self.harness.restore(self._empty)
        try:
            return self._push(made), 0, False
        except Exception:
            if all(fault is None for _, _, fault in self.faults.appends):
                raise
        # What is under way may end, and be recorded, until the attempt has ended.
        self.harness.restore(self._empty)
        allowed = World.done.total() - self._recorded()
        return self._push(made), allowed, True

    def _push(self, made: Program) -> list[Any]:
        return [output for program_input in made.inputs for output in self.harness.push(program_input)]

    def _recorded(self) -> int:
        """How many calls have a record."""
        return sum(
            record.kind is RecordKind.CALL
            for _, records, fault in self.faults.appends
            for record in records
            if fault is None or fault.stores
        )


def check(runner: Runner, seed: int) -> int:
    """Run the program of a seed, with crashes; returns how many.

    Raises:
        ProgramFailed: Something did not hold.
    """
    random_program = program(seed)
    where = "no crash"
    crashes = 0
    try:
        plain, _, _ = runner.outcome(random_program)
        calls = World.done
        appends = len(runner.faults.appends)
        assert len(plain) == len(random_program.inputs) and max(calls.values()) == 1
        chance = random.Random(seed)
        for point in chance.sample(range(appends), min(CRASHES, appends)):
            fault = chance.choice(FAULTS)
            where = f"crash at append {point} of {appends} ({fault.value})"
            outputs, allowed, crashed = runner.outcome(random_program, at_append(point, fault))
            assert crashed, "it did not crash"
            crashes += 1
            assert outputs == plain, f"other outputs:\n{outputs}\n{plain}"
            assert not World.complaints, World.complaints
            assert World.done.keys() == calls.keys()
            again = World.done.total() - calls.total()
            assert again == allowed, f"done again: {again} instead of {allowed}, {World.done - calls}"
    except Exception as error:
        raise ProgramFailed(
            f"program {seed} failed: {where}\n{random_program}\n{type(error).__name__}: {error}\n"
            f"again: python -m tests.random_chats --programs 1 --seed {seed}"
        ) from error
    return crashes


def run(programs: int, seed: int) -> int:
    """Check ``programs`` programs from ``seed`` on; returns the number of crashes."""
    runner = Runner()
    try:
        return sum(check(runner, number) for number in range(seed, seed + programs))
    finally:
        runner.harness.close()


def first_failure(programs: int, seed: int) -> tuple[int, ProgramFailed] | None:
    """The first of some programs that fails, as its seed and why; None where none does."""
    runner = Runner()
    try:
        for at in range(seed, seed + programs):
            try:
                check(runner, at)
            except ProgramFailed as failed:
                return at, failed
    finally:
        runner.harness.close()
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.random_chats", description=__doc__)
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    failed = first_failure(options.programs, options.seed)
    if failed is not None:
        print(failed[1], file=sys.stderr)
    print(f"{options.programs} programs from seed {options.seed}, {'failed' if failed else 'none failed'}")
    return 1 if failed else 0


if __name__ == "__main__":
    # Workers and resources find this module by its name, and not as the main one.
    from tests import random_chats

    sys.exit(random_chats.main())
