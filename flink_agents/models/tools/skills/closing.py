"""Protects the worker's secrets from scripts, which are processes of the same user."""

from __future__ import annotations

import ctypes
import os
import sys

from flink_agents import redaction

_PR_SET_DUMPABLE = 4


def close_worker() -> None:
    """Prevent scripts from reading the secrets of this process through ``/proc``, on Linux.

    ``/proc/PID/mem`` belongs to root from then on, and debuggers of the same user cannot attach. In
    ``/proc/PID/environ``, which shows the initial environment of the process, secrets are overwritten. They
    stay in ``os.environ``.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    redaction.look_at_variables()
    for name, address in _entries().items():
        value = os.environb.get(name)
        if not value or not redaction.holds(os.fsdecode(value)):
            continue
        # The C library copies it to another place.
        os.environb[name] = value
        start = address + len(name) + 1
        if _entries().get(name) != address and ctypes.string_at(start) == value:
            ctypes.memset(start, ord("*"), len(value))


def _entries() -> dict[bytes, int]:
    """Return the address of each variable in the C library."""
    entries = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.CDLL(None), "environ")
    found: dict[bytes, int] = {}
    position = 0
    while entries and (address := entries[position]) is not None:
        found[ctypes.string_at(address).partition(b"=")[0]] = address
        position += 1
    return found
