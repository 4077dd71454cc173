"""Stacks of awaitables that another thread executes at the same time."""

from __future__ import annotations

import subprocess
import sys

LOOK_WHILE_AN_EXCEPTION_IS_THROWN = """
import gc

from flink_agents.runtime.execution.stacks import Stack


class Awaited:
    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        return 1


async def inner():
    await Awaited()


async def outer():
    await inner()


def generator():
    yield from Awaited()


def delegating():
    yield from generator()


async def steps():
    await inner()
    yield 1


async def stepping():
    async for _ in steps():
        pass


watched = None
depths = set()


def look(phase, info):
    # The collector runs in the middle of a throw: another thread could look at the same moment.
    if watched is not None:
        depths.add(len(Stack.of(watched).frames))


for make in (outer, delegating, stepping):
    for _ in range(500):
        watched = made = make()
        made.send(None)
        gc.callbacks.append(look)
        gc.set_threshold(1)
        try:
            made.throw(KeyError())
        except KeyError:
            pass
        gc.set_threshold(700)
        gc.callbacks.remove(look)
        watched = None
print(max(depths))
"""


def test_a_stack_is_read_while_an_exception_is_thrown_into_it() -> None:
    # Python 3.11 crashed here.
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", LOOK_WHILE_AN_EXCEPTION_IS_THROWN],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 2, "what is suspended has its whole stack"
