"""Commands that other commands suggest, as you can run them: with all options, quoted for a shell."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

TOPIC = "TOPIC"
"""A topic that is not known."""

_SECRET = ("password", "secret", "token")


def approve_command(request: str, topic: str, signals: str | None, client: Mapping[str, Any]) -> str:
    """Return the shell command that approves the request with the id ``request``."""
    words = ["--topic", topic, "--signals", signals or TOPIC, *_broker_options(client)]
    return _line("approvals", "approve", *words, "--", request)


def end_run(run: str, key: str, signals: str, client: Mapping[str, Any], cluster: str | None) -> str:
    """Return the shell command that ends the run with the id ``run`` as a dead letter."""
    words = [f"--key={key}", "--signals", signals, "--client", _client_options(client)]
    return _line("runs", "end", run, *words, *(("--cluster", cluster) if cluster else ()))


def redrive_command(topic: str, to: str | None, client: Mapping[str, Any]) -> str:
    """Return the shell command that sends dead letters back.

    Args:
        topic: The topic of dead letters.
        to: The topic that they came from; None if it is not known.
        client: Options of kafka-python.
    """
    return _line(
        "kafka", "redrive", topic, "--to", to or TOPIC, "--bootstrap-servers", _client_options(client)
    )


def _client_options(client: Mapping[str, Any]) -> str:
    """Return options of kafka-python as an option of a command takes them; secrets become placeholders."""
    if client.keys() == {"bootstrap_servers"} and isinstance(client["bootstrap_servers"], str):
        return client["bootstrap_servers"]
    return json.dumps({name: "..." if _is_secret(name) else value for name, value in client.items()})


def _is_secret(name: str) -> bool:
    return any(fragment in name for fragment in _SECRET)


def _broker_options(client: Mapping[str, Any]) -> Iterator[str]:
    servers = client.get("bootstrap_servers", "HOST:PORT")
    yield from ("--bootstrap-servers", servers if isinstance(servers, str) else ",".join(map(str, servers)))
    for name, value in client.items():
        if name != "bootstrap_servers":
            yield from ("--option", f"{name}={'...' if _is_secret(name) else value}")


def _line(*words: str) -> str:
    return " ".join(["flink-agents", *map(shell_word, words)])


def shell_word(text: str) -> str:
    """Quote a text as one word of a shell; unprintable characters are escaped."""
    if text.isprintable():
        return shlex.quote(text)
    escapes = {"\\": "\\\\", "'": "\\'"}
    written = (
        escapes.get(character, character) if character.isprintable() else f"\\U{ord(character):08x}"
        for character in text
    )
    return f"$'{''.join(written)}'"
