"""The waits of the orders, for the job and for the judge."""

from __future__ import annotations

APART_MS = 40
WINDOW_MS = 1000
PER_WINDOW = WINDOW_MS // APART_MS


def pauses(number: int) -> bool:
    """Return True if the order waits for a moment."""
    return number % 5 == 0


def awaits_signal(number: int) -> bool:
    """Return True if the order waits for a signal, in a job that reads from Kafka."""
    return number % 7 == 0


def needs_approval(number: int) -> bool:
    """Return True if the order waits for an approval, in a job that reads from Kafka."""
    return number % 11 == 0


def may_be_late(number: int, keys: int) -> bool:
    """Return True if the order may miss its window, as ``docs/time.md`` says.

    A suspended run holds no watermark, nor do inputs of its key that wait for it. All orders are there from
    the start, so each one waits for those of its key before it. Any other holds its window until it leaves.
    """
    key_numbers = range(number % keys, number + 1, keys)
    return any(
        pauses(order_number) or awaits_signal(order_number) or needs_approval(order_number)
        for order_number in key_numbers
    )


def may_have_another_total(number: int, keys: int) -> bool:
    """Return True if the window whose first order this is may come out otherwise after a kill.

    An order that is late in one start may be in time in the next one. Then its window is another input of the
    next agent, or those after it have other places among its inputs: their calls have other idempotency keys.
    """
    return any(
        may_be_late(order_number, keys) for order_number in range(number % keys, number + PER_WINDOW, keys)
    )
