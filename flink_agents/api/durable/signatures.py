"""Signatures of functions with an idempotency key, for type checkers.

No type can leave one parameter out of a function. Each of these protocols matches functions with a number of
parameters beside the idempotency key, the first three with their types.
"""

from __future__ import annotations

from typing import Never, Protocol, TypeVar

A = TypeVar("A", contravariant=True)
B = TypeVar("B", contravariant=True)
C = TypeVar("C", contravariant=True)
T = TypeVar("T", covariant=True)


class Takes0(Protocol[T]):
    """No other parameter beside the key."""

    def __call__(self, *, idempotency_key: str) -> T:
        """Call the function with its idempotency key."""
        ...


class Takes1(Protocol[A, T]):
    """One parameter beside the key."""

    def __call__(self, a: A, /, *, idempotency_key: str) -> T:
        """Call the function with its idempotency key."""
        ...


class Takes2(Protocol[A, B, T]):
    """Two parameters beside the key."""

    def __call__(self, a: A, b: B, /, *, idempotency_key: str) -> T:
        """Call the function with its idempotency key."""
        ...


class Takes3(Protocol[A, B, C, T]):
    """Three parameters beside the key."""

    def __call__(self, a: A, b: B, c: C, /, *, idempotency_key: str) -> T:
        """Call the function with its idempotency key."""
        ...


class Takes4(Protocol[A, B, C, T]):
    """Four parameters beside the key."""

    def __call__(self, a: A, b: B, c: C, d: Never, /, *, idempotency_key: str) -> T:
        """Call the function with its idempotency key."""
        ...


class Takes5(Protocol[A, B, C, T]):
    """Five parameters beside the key."""

    def __call__(self, a: A, b: B, c: C, d: Never, e: Never, /, *, idempotency_key: str) -> T:
        """Call the function with its idempotency key."""
        ...


class Takes6(Protocol[A, B, C, T]):
    """Six parameters beside the key."""

    def __call__(self, a: A, b: B, c: C, d: Never, e: Never, f: Never, /, *, idempotency_key: str) -> T:
        """Call the function with its idempotency key."""
        ...


TakesKey = (
    Takes0[T]
    | Takes1[A, T]
    | Takes2[A, B, T]
    | Takes3[A, B, C, T]
    | Takes4[A, B, C, T]
    | Takes5[A, B, C, T]
    | Takes6[A, B, C, T]
)
"""A function with a required ``idempotency_key``, and up to six other parameters."""
