"""Results of tools, as records and for models: JSON values, and pictures as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

from pydantic_ai.messages import BinaryContent
from pydantic_core import to_jsonable_python

from flink_agents.api.resources.provenance import as_data
from flink_agents.api.resources.sendable_text import sendable

PICTURES = 10
"""Factor by which pictures may exceed the limit of a result."""

_MODELS_SEE = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Media types of pictures that models accept."""


def for_model(
    value: Any, limit: int, plain: Callable[[Any], Any] = to_jsonable_python, allow_nan: bool = False
) -> tuple[Literal["success", "retry"], Any]:
    """Return the result of a tool in the form for the model, marked as data.

    Args:
        value: The tool's result: a value, a picture, or a list of these.
        limit: Maximum size in bytes of JSON; pictures may have ten times as many together.
        plain: Converts a value to JSON.
        allow_nan: True if numbers may be infinite or NaN.

    Returns:
        ``success`` and the result, or ``retry`` and the reason why it is too large.

    Raises:
        ValueError: JSON cannot hold the value.
        TypeError: JSON cannot hold the value.
    """
    has_pictures = isinstance(value, list | tuple) and any(map(_is_picture, value))
    raw_parts = value if has_pictures else [value]
    parts = [part if _is_picture(part) else plain(sendable(part)) for part in raw_parts]
    texts = [part for part in parts if not isinstance(part, BinaryContent)]
    size = _bytes_of(texts if has_pictures else texts[0], allow_nan) if texts else 0
    if size > limit:
        return "retry", f"The result has {size} bytes, of which {limit} can be read. Ask for less."
    pictures = [part for part in parts if isinstance(part, BinaryContent)]
    total_bytes = sum(len(picture.data) for picture in pictures)
    if total_bytes > limit * PICTURES:
        return "retry", (
            f"The pictures of the result have {total_bytes} bytes, of which {limit * PICTURES} can be read. "
            "Ask for fewer or smaller ones."
        )
    return "success", as_data(parts if has_pictures else parts[0])


def _bytes_of(value: Any, allow_nan: bool) -> int:
    """Return the size of a value in bytes of JSON; ValueError for NaN, unless it is allowed."""
    return len(json.dumps(value, allow_nan=allow_nan, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def _is_picture(value: Any) -> bool:
    return isinstance(value, BinaryContent) and value.media_type in _MODELS_SEE
