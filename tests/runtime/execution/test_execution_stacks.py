"""Stacks that are read while another thread executes them. Both scripts crashed Python 3.11."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
        depths.add(len(Stack.of_awaitable(watched).frames))


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


LOOK_AT_A_THREAD = """
import gc
import sys
import threading
import time

from flink_agents.runtime.execution.stacks import Stack

done = False


def deep(n):
    return deep(n - 1) if n else sum(range(3))


def wide(n, a=1, b=2, c=3, d=4):
    x = [a, b, c, d]
    return deep(n - 1) + wide(n - 2, c, d, a, b) if n > 1 else len(x)


def awaited(n):
    async def one(left):
        return await one(left - 1) if left else 0

    try:
        one(n).send(None)
    except StopIteration:
        pass


def work():
    number = 0
    while not done:
        number += 1
        (deep, wide, awaited)[number % 3](5 + number % 17)


thread = threading.Thread(target=work, daemon=True)
thread.start()
# A collection lets the other thread run.
gc.callbacks.append(lambda phase, info: time.sleep(0.0001))
sys.setswitchinterval(1e-5)
depth = 0
for _ in range(400):
    gc.set_threshold(1)
    stack = Stack.of_thread(thread.ident)
    gc.set_threshold(700)
    depth = max(depth, len(stack.frames))
done = True
print(depth)
"""


@pytest.mark.parametrize(
    "script", [LOOK_WHILE_AN_EXCEPTION_IS_THROWN, LOOK_AT_A_THREAD], ids=["throw", "thread"]
)
def test_a_stack_is_read_while_it_changes(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 2, "what is suspended has its whole stack"
