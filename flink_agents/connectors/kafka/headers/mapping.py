"""The headers of a record, as users and the sink see them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from typing_extensions import override


@dataclass(frozen=True)
class KafkaHeaders(Mapping[str, bytes | None]):
    """The headers of a record: their order, repeated names and headers without a value stay.

    As a mapping, it has the last value of each name. ``headers | {"name": b"value"}`` replaces all headers of
    a name, and keeps the others as they are.

    Attributes:
        pairs: Name and value of each header; None if it has no value.
    """

    pairs: tuple[tuple[str, bytes | None], ...] = ()

    @classmethod
    def of(cls, headers: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> KafkaHeaders:
        """Return headers from a mapping, or from pairs of name and value, which can repeat a name."""
        if isinstance(headers, KafkaHeaders):
            return headers
        if isinstance(headers, Mapping):
            return cls(tuple(cast("Mapping[str, Any]", headers).items()))
        return cls(tuple(headers))

    @override
    def __getitem__(self, name: str) -> bytes | None:
        for header_name, content in reversed(self.pairs):
            if header_name == name:
                return content
        raise KeyError(name)

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(dict(self.pairs))

    @override
    def __len__(self) -> int:
        return len(dict(self.pairs))

    @override
    def __eq__(self, other: object) -> bool:
        if isinstance(other, KafkaHeaders):
            return self.pairs == other.pairs
        return isinstance(other, Mapping) and dict(self.pairs) == dict(other)

    @override
    def __hash__(self) -> int:
        return hash(self.pairs)

    def __or__(self, other: Mapping[str, bytes | None]) -> KafkaHeaders:
        return KafkaHeaders((*self.without(other).pairs, *KafkaHeaders.of(other).pairs))

    def __ror__(self, other: Mapping[str, bytes | None]) -> KafkaHeaders:
        return KafkaHeaders.of(other) | self

    def all(self, name: str) -> list[bytes | None]:
        """Return the values of all headers with a name, in their order."""
        return [content for header_name, content in self.pairs if header_name == name]

    def without(self, names: Iterable[str]) -> KafkaHeaders:
        """Return the headers except those with one of these names."""
        removed = frozenset(names)
        return KafkaHeaders(tuple(pair for pair in self.pairs if pair[0] not in removed))
