"""What tools return, as it is recorded and as a model reads it: JSON values, and pictures as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

from pydantic_ai.messages import BinaryContent
from pydantic_core import to_jsonable_python

from flink_agents.api.resources.provenance import as_data

PICTURES = 10
"""How many times the limit of a result pictures may have."""

_MODELS_SEE = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


def told(
    value: Any, limit: int, plain: Callable[[Any], Any] = to_jsonable_python, allow_nan: bool = False
) -> tuple[Literal["success", "retry"], Any]:
    """What a model is told of a result.

    Args:
        value: What the tool returned: a value, a picture, or a list of these.
        limit: Bytes of JSON that it may have; pictures may have ten times as many.
        plain: Makes JSON of a value.
        allow_nan: Whether numbers may be infinite or none.

    Returns:
        ``success`` and the result, or ``retry`` and why it is too large.

    Raises:
        ValueError: It is no JSON.
        TypeError: The same.
    """
    several = isinstance(value, list | tuple) and any(map(_is_picture, value))
    parts = [one if _is_picture(one) else plain(one) for one in (value if several else [value])]
    texts = [one for one in parts if not isinstance(one, BinaryContent)]
    size = _bytes_of(texts if several else texts[0], allow_nan) if texts else 0
    if size > limit:
        return "retry", f"The result has {size} bytes, of which {limit} can be read. Ask for less."
    pictures = [one for one in parts if isinstance(one, BinaryContent)]
    taken = sum(len(one.data) for one in pictures)
    if taken > limit * PICTURES:
        return "retry", (
            f"The pictures of the result have {taken} bytes, of which {limit * PICTURES} can be read. "
            "Ask for fewer or smaller ones."
        )
    return "success", as_data(parts if several else parts[0])


def _bytes_of(value: Any, allow_nan: bool) -> int:
    return len(json.dumps(value, allow_nan=allow_nan, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def _is_picture(value: Any) -> bool:
    return isinstance(value, BinaryContent) and value.media_type in _MODELS_SEE
