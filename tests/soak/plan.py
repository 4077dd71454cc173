"""What happens to each input, for the job and for the driver."""

from __future__ import annotations

HOT_KEYS = 40
CYCLE = 1200
"""Inputs of a cycle."""

BUSY = 200
"""Its first inputs, which come at once: in each second cycle with new keys, else with hot ones."""


def due(number: int) -> int:
    """Return the number of the input with which an input is sent, at a steady rate."""
    place = number % CYCLE
    return number + BUSY - 1 - place if place < BUSY else number


def key_of(number: int) -> str:
    """Return the key of an input: one of the hot ones, or a new one."""
    return f"new-{number}" if is_new(number) else f"hot-{number % HOT_KEYS}"


def is_new(number: int) -> bool:
    """Return True if the input has a key of its own."""
    return number % (2 * CYCLE) < BUSY


def new_keys(count: int) -> int:
    """Return how many of the first ``count`` inputs have keys of their own."""
    whole, remainder = divmod(count, 2 * CYCLE)
    return whole * BUSY + min(remainder, BUSY)


def sleeps(number: int) -> bool:
    """Return True if the run sleeps."""
    return number % 5 == 1


def awaits_signal(number: int) -> bool:
    """Return True if the run waits for a signal."""
    return number % 7 == 2


def asks(number: int) -> bool:
    """Return True if the run calls a sub-agent."""
    return number % 11 == 3


def fails(number: int) -> bool:
    """Return True if the run becomes a dead letter."""
    return number % 13 == 4
