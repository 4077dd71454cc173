"""Digests that are equal for equal values, whatever the order of dictionaries and sets.

They are made from the bytes that ``codec`` writes, so that every value it supports has a digest, and
values of different types (``1``, ``1.0``, ``True``) differ. BLAKE2b: RFC 7693.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import msgpack

from flink_agents.api.errors import UnserializableValueError
from flink_agents.runtime.serde.classes.values import MARKED
from flink_agents.runtime.serde.codec import ValueCodec, unordered

DIGEST_BYTES = 16

_MAP = re.compile(rb"[\x81-\x8f\xde\xdf]")
"""The first byte of a map with entries in MessagePack; other values may contain it, too."""


class _Pairs(list[tuple[Any, Any]]):
    """The entries of a map."""


def digest_of(codec: ValueCodec, value: Any) -> bytes:
    """Return the digest of ``value``, 16 bytes.

    Raises:
        UnserializableValueError: ``value`` has a part that cannot be encoded.
    """
    return digest_of_bytes(codec.encode(value))


def digest_of_bytes(data: bytes) -> bytes:
    """Return the digest of a value from ``data``, the bytes that ``codec`` wrote for it.

    Raises:
        UnserializableValueError: The value is nested too deeply.
    """
    try:
        form = canonical(data)
    except RecursionError:
        raise UnserializableValueError("a value is nested too deeply to be digested") from None
    return hashlib.blake2b(form, digest_size=DIGEST_BYTES).digest()


def canonical(data: bytes) -> bytes:
    """Return bytes that are equal for equal values, from the bytes that ``codec`` wrote."""
    # Most values have no part with a variable order, and sorting takes most of the time.
    return _ordered(data) if _MAP.search(data, 1) else b"=" + data[1:]


def _ordered(data: bytes) -> bytes:
    free = False

    def pairs(entries: list[tuple[Any, Any]]) -> _Pairs:
        nonlocal free
        free = free or len(entries) > 1 or (bool(entries) and isinstance(entries[0][0], msgpack.ExtType))
        return _Pairs(entries)

    tree = msgpack.unpackb(
        data[1:],
        object_pairs_hook=pairs,
        ext_hook=msgpack.ExtType,
        strict_map_key=False,
        unicode_errors="surrogatepass",
    )
    return _form(tree) if free else b"=" + data[1:]


def _form(node: Any) -> bytes:
    if isinstance(node, _Pairs):
        entries = [(_form(key), _value_form(key, value)) for key, value in node]
        return b"{" + b"".join(_framed(part) for entry in sorted(entries) for part in entry) + b"}"
    if isinstance(node, list):
        return b"[" + b"".join(_framed(_form(item)) for item in node) + b"]"
    return b"." + msgpack.Packer(unicode_errors="surrogatepass", strict_types=True).pack(node)


def _value_form(key: Any, value: Any) -> bytes:
    """Return the form of a map's value; the items of a set have no order."""
    if isinstance(key, msgpack.ExtType) and isinstance(value, list) and unordered(key.code):
        return b"<" + b"".join(_framed(form) for form in sorted(_form(item) for item in value)) + b">"
    if isinstance(key, msgpack.ExtType) and isinstance(value, list) and key.code in MARKED:
        # Type markers are no part of the value, and earlier versions wrote none.
        return _form(value[:2])
    return _form(value)


def _framed(form: bytes) -> bytes:
    return len(form).to_bytes(8, "big") + form
