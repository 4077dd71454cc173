"""Distributes work among forked processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator

NAME_BYTES = 200
"""Bytes of a name in the pipe: less than a pipe takes at once, so that each process reads whole names."""


def in_processes(names: Iterable[str], jobs: int, work: Callable[[str], None]) -> None:
    """Call a function with each name, in forked processes that share the names.

    Raises:
        RuntimeError: A process failed; it has said why.
    """
    receive, send = os.pipe()
    children = [_child(receive, send, work) for _ in range(jobs)]
    os.close(receive)
    for name in names:
        os.write(send, name.encode().ljust(NAME_BYTES))
    os.close(send)
    failed = [child for child in children if os.waitpid(child, 0)[1] != 0]
    if failed:
        raise RuntimeError(f"{len(failed)} processes failed")


def _child(receive: int, send: int, work: Callable[[str], None]) -> int:
    child = os.fork()
    if child:
        return child
    os.close(send)
    try:
        for name in _names(receive):
            work(name)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.__stderr__, flush=True)
        os._exit(1)
    os._exit(0)


def _names(receive: int) -> Iterator[str]:
    while name := os.read(receive, NAME_BYTES):
        yield name.decode().strip()
