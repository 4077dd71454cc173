"""Fits what a resource grows by per input and per new key, and compares it with a limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean

Row = tuple[float, float, float]
"""A sample: the inputs so far, the new keys among them, and the value."""


@dataclass(frozen=True)
class Limit:
    """The growth that counts as none.

    Attributes:
        per_thousand: Growth per 1,000 inputs.
        per_key: Growth per new key.
    """

    per_thousand: float
    per_key: float


@dataclass(frozen=True)
class Slope:
    """A fitted growth.

    Attributes:
        value: The growth.
        error: Half of its 95 % confidence interval.
        limit: The growth that counts as none.
    """

    value: float
    error: float
    limit: float

    @property
    def is_flat(self) -> bool:
        """True unless the growth is certainly above the limit."""
        return self.value - self.error <= self.limit


def slopes_of(rows: Sequence[Row], limit: Limit) -> dict[str, Slope]:
    """Return the slopes of a resource: in all per 1,000 inputs, and what each new key adds to it.

    Args:
        rows: Samples.
        limit: The growth that counts as none.

    Raises:
        ValueError: The samples do not tell inputs and new keys apart.
    """
    inputs, keys, values = ([row[place] for row in rows] for place in range(3))
    total, total_error = _fit(inputs, values, used=2)
    # Of both, what the inputs do not explain.
    key, key_error = _fit(_residuals(inputs, keys), _residuals(inputs, values), used=3)
    return {
        "per 1,000 inputs": Slope(1000 * total, 1000 * total_error, limit.per_thousand),
        "per new key": Slope(key, key_error, limit.per_key),
    }


def growing(rows: Sequence[Row], limit: Limit) -> list[str]:
    """Return the slopes that are certainly above the limit, and above it in each half of the samples.

    What fills up, swings, or steps up once is above it in one half.

    Args:
        rows: Samples.
        limit: The growth that counts as none.
    """
    middle = len(rows) // 2
    halves = [slopes_of(part, limit) for part in (rows[:middle], rows[middle:])]
    return [
        kind
        for kind, slope in slopes_of(rows, limit).items()
        if not slope.is_flat and all(half[kind].value > slope.limit for half in halves)
    ]


def _fit(places: Sequence[float], values: Sequence[float], used: int) -> tuple[float, float]:
    """Return the slope of a line through points, by least squares, and half of its confidence interval.

    Args:
        places: The coordinates.
        values: The values.
        used: The number of parameters that the fit has used up.
    """
    free = len(values) - used
    center = mean(places)
    spread = sum((place - center) ** 2 for place in places)
    if free < 1 or spread < 1:
        raise ValueError(f"{len(values)} samples do not tell inputs and new keys apart")
    slope = sum((place - center) * value for place, value in zip(places, values, strict=True)) / spread
    level = mean(values) - slope * center
    residual_sum = sum(
        (value - level - slope * place) ** 2 for place, value in zip(places, values, strict=True)
    )
    # Student's t, nearly.
    return slope, (2 + 3 / free) * sqrt(residual_sum / free / spread)


def _residuals(places: Sequence[float], values: Sequence[float]) -> list[float]:
    """Return what a line leaves of values."""
    slope, _ = _fit(places, values, used=2)
    level = mean(values) - slope * mean(places)
    return [value - level - slope * place for place, value in zip(places, values, strict=True)]
