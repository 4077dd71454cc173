"""Histories of conversations in short-term memory: a chat continues one and stores its messages in it.

A chat reads its history when it starts and writes it when it has ended, so a failed chat changes nothing. The
sizes of the messages in JSON alone decide which messages are dropped, so that a replay drops the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any
from weakref import WeakKeyDictionary

from pydantic_ai.messages import ModelMessage, ModelRequest, SystemPromptPart, UserPromptPart

from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.context import RunnerContext
from flink_agents.api.errors import AgentConfigurationError, HistoryError
from flink_agents.api.models.history import (
    ConversationHandle,
    ConversationHistory,
    StoredConversation,
    Summary,
)
from flink_agents.api.resources import ResourceType
from flink_agents.models.chat.messages.converting import from_json, to_json
from flink_agents.models.chat.messages.shortening import (
    begins_turn,
    bytes_of,
    latest_turn,
    question_and_answer,
    shorten_messages,
    texts_of,
    tokens_of,
)

_log = bounded_logger("flink_agents.history")

_SUMMARISED = "Summary of the conversation so far:"
"""Text before a summary, for models."""
_BYTES_OF_TOKEN = 4
"""Estimate of the bytes of a token."""
_MOST_OF_A_MESSAGE = 4000
"""Maximum number of characters of one part of a message that a summarising model reads."""
_NOT_STORED = frozenset({"run_id", "conversation_id", "usage"})
"""Fields of messages that later requests do not need."""

_under_way: WeakKeyDictionary[RunnerContext, set[str]] = WeakKeyDictionary()
"""Names of the histories that running chats of an action continue."""


class RememberedChat:
    """One chat with a history.

    Args:
        ctx: The context of the action.
        policy: The author's settings of the history.
        now: The timestamp of new messages.
    """

    def __init__(self, ctx: RunnerContext, policy: ConversationHistory, now: datetime) -> None:
        self._ctx = ctx
        self._policy = policy
        self._now = now
        self._handle = ConversationHandle(ctx.short_term_memory, policy.name)
        self._system: list[str] = []
        self._turn: list[ModelMessage] = []

    @contextmanager
    def lock_history(self) -> Iterator[None]:
        """Lock the history against other chats of the action.

        Raises:
            HistoryError: Another chat of the action continues it.
        """
        names = _under_way.setdefault(self._ctx, set())
        name = self._policy.name
        if name in names:
            raise HistoryError(
                f"two chats of an action use the history {name!r} at the same time",
                expected="one after the other, or histories of different names",
                fix="await the first before the second, or use a ConversationHistory(name=...) for each",
            )
        names.add(name)
        try:
            yield
        finally:
            names.remove(name)

    def messages(self) -> list[ModelMessage]:
        """Return the remembered messages: system messages, the summary, and the remaining messages."""
        stored = self._handle.read()
        return [*self._opening_messages(stored.system, stored.summary), *from_json(stored.messages)]

    def begin_chat(self, added: Sequence[ModelMessage]) -> list[ModelMessage]:
        """Return the messages of a chat: the earlier ones, then ``added``.

        System messages at the start of ``added`` replace those at the start of the history.
        """
        stored = self._handle.read()
        system, self._turn = _without_system(added)
        self._system = system or stored.system
        return [
            *self._opening_messages(self._system, stored.summary),
            *from_json(stored.messages),
            *self._turn,
        ]

    async def store_chat(self, answered: Sequence[ModelMessage]) -> None:
        """Store the chat in the history, after messages are cut and dropped as its limits require.

        It waits for the summary of dropped messages, if the history has one.

        Args:
            answered: The messages that the chat added after those of :meth:`begin_chat`.

        Raises:
            HistoryError: The system messages leave no room for others.
            ModelError: The dropped messages could not be summarised.
        """
        stored = self._handle.read()
        room = self._free_bytes(stored)
        all_messages = [*stored.messages, *_stored_form([*self._turn, *answered])]
        messages = self._shorten_messages(all_messages, room)
        first = self._first_that_stays(messages, room)
        summary = stored.summary
        dropped = messages[:first]
        if dropped and self._policy.summary is not None:
            summary = await self._summarise_dropped(self._policy.summary, summary, dropped)
        self._handle.write(
            StoredConversation(
                system=self._system,
                summary=summary,
                messages=messages[first:],
                fallen_out=stored.fallen_out + len(dropped),
            )
        )

    def _opening_messages(self, system: Sequence[str], summary: str) -> list[ModelMessage]:
        """Return the messages before the remembered ones: system texts, and the summary as the user's."""
        opening: list[ModelMessage] = []
        if system:
            parts = [SystemPromptPart(text, timestamp=self._now) for text in system]
            opening.append(ModelRequest(parts, timestamp=self._now))
        if summary:
            # As a user message: it repeats what others said, which must not get the weight of a system
            # message.
            part = UserPromptPart(f"{_SUMMARISED}\n{summary}", timestamp=self._now)
            opening.append(ModelRequest([part], timestamp=self._now))
        return opening

    def _free_bytes(self, stored: StoredConversation) -> int:
        """Return the number of bytes that system messages and summary leave for messages.

        Raises:
            HistoryError: They leave none.
        """
        summary = self._policy.summary
        # A character takes up to four bytes.
        summary_bytes = len(stored.summary.encode("utf-8")) if summary is None else summary.max_characters * 4
        reserved_bytes = bytes_of(self._system) + summary_bytes
        room = self._policy.max_bytes - reserved_bytes
        if room <= 0:
            raise HistoryError(
                f"the system messages of the history {self._policy.name!r} leave no room for others",
                expected=f"at most {self._policy.max_bytes} bytes with the summary",
                found=f"{reserved_bytes} bytes",
                fix="move the text to instructions of the chat model, which no history stores, or raise "
                "max_bytes",
            )
        return room

    def _message_limits(self, room: int) -> tuple[int | None, int | None, int]:
        """Return the limits of messages, tokens and bytes, in the order of :func:`_measure_messages`."""
        return (self._policy.max_messages, self._policy.max_tokens, room)

    def _shorten_messages(self, messages: list[dict[str, Any]], room: int) -> list[dict[str, Any]]:
        """Return the messages; if not all of them fit, the latest turn and large messages are cut.

        Without this, one large message would displace all earlier ones.

        Args:
            messages: All messages as JSON values, the oldest first.
            room: Maximum size of all messages in bytes of JSON.
        """
        size = _measure_messages(messages)
        max_messages, max_tokens, _ = limits = self._message_limits(room)
        if _fits_limits(size, limits, 1.0):
            return messages
        # The latest turn leaves half of what stays to earlier turns.
        share = self._policy.share / 2
        turn_size = _measure_messages(latest_turn(messages))
        if not _fits_limits(turn_size, (max_messages, None, None), share):
            begin = len(messages) - len(latest_turn(messages))
            messages = [*messages[:begin], *question_and_answer(messages[begin:])]
        size_limits = (None, max_tokens, room)
        if not _fits_limits(size, size_limits, 1.0):
            most_bytes = room if max_tokens is None else min(room, max_tokens * _BYTES_OF_TOKEN)
            messages = shorten_messages(
                messages, lambda turn: _fits_limits(_measure_messages(turn), size_limits, share), most_bytes
            )
        previous_bytes = size[2]
        remaining_bytes = _measure_messages(messages)[2]
        if remaining_bytes < previous_bytes:
            _log.warning(
                "the history %r of agent %s is too large: large messages are cut, from %d to %d bytes",
                self._policy.name,
                self._ctx.agent_name,
                previous_bytes,
                remaining_bytes,
            )
        return messages

    def _first_that_stays(self, messages: Sequence[Mapping[str, Any]], room: int) -> int:
        """Return the index of the first message that stays in the history; a turn begins there.

        It is 0 if all messages fit, and the number of messages if none stays.
        """
        limits = self._message_limits(room)
        remaining_size = _measure_messages(messages)
        if _fits_limits(remaining_size, limits, 1.0):
            return 0
        for index, message in enumerate(messages):
            if index and begins_turn(message) and _fits_limits(remaining_size, limits, self._policy.share):
                return index
            message_size = _measure_messages([message])
            remaining_size = [
                amount - dropped for amount, dropped in zip(remaining_size, message_size, strict=True)
            ]
        return len(messages)

    async def _summarise_dropped(
        self, policy: Summary, previous_summary: str, dropped: Sequence[Mapping[str, Any]]
    ) -> str:
        """Return a summary of the previous summary and of newly dropped messages.

        The request to the summarising model is recorded. It reads the end of the texts, up to ``max_bytes``
        characters.
        """
        lines = [_SUMMARISED, previous_summary, ""] if previous_summary else []
        lines += [line for message in dropped for line in _lines_of(message)]
        text = "\n".join(lines)[-self._policy.max_bytes :]
        resource = self._ctx.get_resource(policy.model, ResourceType.CHAT_MODEL)
        result = await resource.chat(
            self._ctx, f"Summarise this conversation.\n\n{text}", instructions=policy.instructions
        )
        return result.output[: policy.max_characters]


def check_recordable(run_tools: bool) -> None:
    """Check that a chat with a history executes its tool calls, so that later chats can continue it.

    Raises:
        AgentConfigurationError: Tool calls would have no results.
    """
    if not run_tools:
        raise AgentConfigurationError(
            "a chat with a ConversationHistory leaves tool calls to its caller",
            expected="run_tools=True, so that each call has a result",
            fix="keep the messages of the result yourself, and pass them as history=[...]",
        )


def _without_system(messages: Sequence[ModelMessage]) -> tuple[list[str], list[ModelMessage]]:
    """Split messages into the texts of the system messages at the start, and all other messages."""
    system: list[str] = []
    for number, message in enumerate(messages):
        if not isinstance(message, ModelRequest):
            return system, list(messages[number:])
        system += [part.content for part in message.parts if isinstance(part, SystemPromptPart)]
        remaining_parts = [part for part in message.parts if not isinstance(part, SystemPromptPart)]
        if remaining_parts:
            return system, [replace(message, parts=remaining_parts), *messages[number + 1 :]]
    return system, []


def _stored_form(messages: Sequence[ModelMessage]) -> list[dict[str, Any]]:
    """Return messages as JSON, without fields that later requests do not need."""
    return [
        {name: value for name, value in message.items() if value is not None and name not in _NOT_STORED}
        for message in to_json(messages)
    ]


def _measure_messages(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the number of messages, their tokens (an estimate), and their bytes of JSON."""
    return [len(messages), sum(map(tokens_of, messages)), sum(map(bytes_of, messages))]


def _fits_limits(size: Sequence[int], limits: Sequence[int | None], share: float) -> bool:
    """Return True if no number of a size exceeds this share of its limit; None is no limit."""
    return all(limit is None or used <= limit * share for used, limit in zip(size, limits, strict=True))


def _lines_of(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each part of a message with text, for a summarising model."""
    for part in message["parts"]:
        text = " ".join(texts_of(part))[:_MOST_OF_A_MESSAGE]
        if text:
            yield f"{part['part_kind']}: {text}"
