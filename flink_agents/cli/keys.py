"""Keys as commands take and show them."""

from __future__ import annotations

import json
from typing import Any, NoReturn


def parse_key(text: str) -> Any:
    """Parse a text as JSON, with tuples for arrays; return the text itself if it is not JSON."""
    try:
        return _convert_arrays(json.loads(text, parse_constant=_refuse_constant))
    except (ValueError, RecursionError):
        return text


def key_value(text: str) -> Any:
    """Return the key that an argument names: its JSON value if a run can have that key, else the text."""
    from flink_agents.runtime.serde.keys import encode_key

    value = parse_key(text)
    try:
        encode_key(value)
    except Exception:  # an object, for example, is no key
        return text
    return value


def key_text(text: str) -> str:
    """Return the canonical text of the key that an argument names."""
    from flink_agents.runtime.serde.keys import encode_key

    return encode_key(key_value(text))


def key_texts(text: str) -> set[str]:
    """Return the canonical texts that an argument may mean: its JSON value, the string, or the text itself.

    So ``1`` also finds the string ``"1"``. Commands that remove a key use :func:`key_text`, which is
    unambiguous.
    """
    from flink_agents.runtime.serde.keys import encode_key

    # "s1" is the canonical text of another string, which is shown as 1.
    raw_texts = {text} if shown_key(text) == text else set[str]()
    return {key_text(text), encode_key(text), *raw_texts}


def shown_key(canonical: str) -> str:
    """Return a key in the form that :func:`key_value` reads; its canonical text if there is no such form.

    No class is imported, since a trace may come from anywhere.
    """
    from flink_agents.runtime.serde.keys import decode_key

    try:
        value = decode_key(canonical, from_outside=True)
        shown = value if isinstance(value, str) and key_value(value) == value else json.dumps(value)
        return shown if key_text(shown) == canonical else canonical
    except Exception:  # a redacted key, or one that JSON does not have
        return canonical


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(constant)


def _convert_arrays(value: Any) -> Any:
    return tuple(map(_convert_arrays, value)) if isinstance(value, list) else value
