"""Digests that are equal for equal values, whatever the order of dictionaries and sets.

They are made from the bytes that ``codec`` writes, so that every value it supports has a digest, and
values of different types (``1``, ``1.0``, ``True``) differ. Of an object, its class and the values of its
fields count, not which of them had their default. BLAKE2b: RFC 7693.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import msgpack

from flink_agents.api.errors import UnserializableValueError
from flink_agents.runtime.serde.changed import ENUM, KINDS, Stored
from flink_agents.runtime.serde.codec import TUPLE, Packers, ValueCodec, unordered

DIGEST_BYTES = 16
"""The length of a digest."""

_packers = Packers(unicode_errors="surrogatepass", strict_types=True)

_MAP = re.compile(rb"[\x82-\x8f\xde\xdf]|\x81(?!" + re.escape(_packers.pack(TUPLE)) + rb")", re.DOTALL)
"""Matches the beginning of a map with entries in MessagePack that is no tuple; texts may contain it, too."""


class _Pairs(list[tuple[Any, Any]]):
    """The entries of an unpacked map: pairs of key and value, in the order of the bytes."""


def digest_of(codec: ValueCodec, value: Any) -> bytes:
    """Return the digest of ``value``: 16 bytes, equal for equal values.

    Raises:
        UnserializableValueError: ``value`` has a part that cannot be encoded.
    """
    return digest_of_bytes(codec.encode(value))


def digest_of_bytes(data: bytes) -> bytes:
    """Return the digest of a value from ``data``, the bytes that ``codec`` wrote for it.

    Raises:
        UnserializableValueError: The value is nested too deeply.
    """
    return digest_with_fields(data)[0]


def _unpack_tree(data: bytes) -> tuple[Any, bool]:
    """Return a value as MessagePack has it, and True if its bytes are the same for all equal values.

    They may differ if a part has a variable order, such as a dictionary with two entries, or a class.
    """
    may_differ = False

    def pairs(entries: list[tuple[Any, Any]]) -> _Pairs:
        nonlocal may_differ
        if len(entries) > 1 or (
            entries and isinstance(key := entries[0][0], msgpack.ExtType) and key != TUPLE
        ):
            may_differ = True
        return _Pairs(entries)

    tree = msgpack.unpackb(
        data[1:],
        object_pairs_hook=pairs,
        ext_hook=msgpack.ExtType,
        strict_map_key=False,
        unicode_errors="surrogatepass",
    )
    return tree, not may_differ


class Forms:
    """Makes forms of values, as bytes that are equal for equal values.

    Attributes:
        fields: The names of the fields of each class among the values, by the name of the class.
    """

    def __init__(self) -> None:
        self.fields: dict[str, list[str]] = {}

    def form(self, node: Any) -> bytes:
        """Return the form of a part of a value, as MessagePack has it; maps are ``_Pairs``."""
        if isinstance(node, _Pairs):
            if len(node) == 1 and (stored := _object_in(*node[0])) is not None:
                # Its kind does not count: a dataclass can become a model.
                return self.object_form(stored)
            entries = [(self.form(key), self._value_form(key, value)) for key, value in node]
            return b"{" + b"".join(_framed(part) for entry in sorted(entries) for part in entry) + b"}"
        if isinstance(node, list):
            return b"[" + b"".join(_framed(self.form(item)) for item in node) + b"]"
        return b"." + _packers.pack(node)

    def _value_form(self, key: Any, value: Any) -> bytes:
        """Return the form of a map's value; the items of a set have no order."""
        if isinstance(key, msgpack.ExtType) and isinstance(value, list) and unordered(key.code):
            return b"<" + b"".join(_framed(form) for form in sorted(map(self.form, value))) + b">"
        return self.form(value)

    def object_form(self, stored: Stored) -> bytes:
        """Return the form of an object: its class, and the values of its fields."""
        names = self.fields.setdefault(stored.name, [])
        names += [name for name in stored.fields if name not in names]
        return self.form_of_fields(stored.name, stored.fields, stored.extra)

    def form_of_fields(self, name: str, fields: Mapping[str, Any], extra: Any) -> bytes:
        """Return the form of an object from the name of its class, its fields and other attributes."""
        parts = [self.form(name)]
        for field in sorted(fields):
            parts += [self.form(field), self.form(fields[field])]
        return b"(" + b"".join(map(_framed, [*parts, self.form(extra)])) + b")"


def _object_in(key: Any, content: Any) -> Stored | None:
    """Return the object that a map's entry stands for, without type markers; None for a plain entry."""
    if not (isinstance(key, msgpack.ExtType) and key.code in KINDS and isinstance(content, list)):
        return None
    stored = Stored.from_content(key.code, content)
    stored.fields = (
        {"": stored.member} if key.code == ENUM else {**stored.fields, **dict(stored.private or ())}
    )
    return stored


def _framed(form: bytes) -> bytes:
    """Return a form with its length before it, so that no two lists of forms look alike."""
    return len(form).to_bytes(8, "big") + form


def digest_with_fields(data: bytes) -> tuple[bytes, dict[str, list[str]] | None]:
    """Return the digest of an encoded value, and the fields of each class in it; None for no class.

    Raises:
        UnserializableValueError: The value is nested too deeply.
    """
    # Most values have no part with a variable order, and sorting takes most of the time.
    if not _MAP.search(data, 1):
        return hashlib.blake2b(b"=" + data[1:], digest_size=DIGEST_BYTES).digest(), None
    try:
        tree, is_unique = _unpack_tree(data)
        if is_unique:
            return digest_of_form(b"=" + data[1:]), None
        forms = Forms()
        form = forms.form(tree)
    except RecursionError:
        raise UnserializableValueError("a value is nested too deeply to be digested") from None
    return digest_of_form(form), forms.fields or None


def tree_of(data: bytes) -> Any:
    """Return a value as MessagePack has it, for :class:`Forms`, from the bytes that ``codec`` wrote."""
    return _unpack_tree(data)[0]


def digest_of_form(form: bytes) -> bytes:
    """Return the digest of a form of :class:`Forms`."""
    return hashlib.blake2b(form, digest_size=DIGEST_BYTES).digest()
