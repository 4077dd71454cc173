"""Sets when Python's collector of cycles looks for garbage."""

from __future__ import annotations

import gc

DEFAULT_THRESHOLDS = (700, 10, 10)
THRESHOLDS = (200_000, 20, 100)
"""When Python looks for cycles; see :func:`collect_garbage_less_often`."""


def collect_garbage_less_often() -> None:
    """Raise the thresholds of Python's collector of cycles, where nobody has set them.

    It walks over all that waits again and again: with 20,000 calls in flight and its defaults,
    that took half of the loop's time (measured). A call that waits for its record is some eighty
    objects, so that calls alone meet a lower first threshold: 50,000 took a tenth of the time.
    """
    if gc.get_threshold() == DEFAULT_THRESHOLDS:
        gc.set_threshold(*THRESHOLDS)
