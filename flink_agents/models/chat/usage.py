"""Counts the usage of a conversation by recorded responses, and ends it if it exceeds a limit."""

from __future__ import annotations

from flink_agents.api.errors import UsageLimitExceededError
from flink_agents.api.models.chat import ChatUsage, UsageLimits, sum_amounts
from flink_agents.models.chat.requests import RequestAnswer

_NO_USAGE = ChatUsage()


class UsageCounter:
    """Counts the requests, tokens and tool calls of a conversation, and ends it at its limits.

    Args:
        limits: The usage limits of the conversation.
        used: Its usage before the first request, such as that of a router.

    Attributes:
        usage: Requests, tool calls, tokens and cost so far.
    """

    def __init__(self, limits: UsageLimits, used: ChatUsage = _NO_USAGE) -> None:
        self._limits = limits
        cost = None if limits.cost is None else used.cost or 0.0
        self.usage = used if used.cost == cost else used.model_copy(update={"cost": cost})

    @property
    def counts_cost(self) -> bool:
        """True if prices are needed: finding a price takes as long as the rest of a request's overhead."""
        return self._limits.cost is not None

    def check_request(self) -> None:
        """Check that one more request may be sent.

        Raises:
            UsageLimitExceededError: The limit of requests is reached.
        """
        self._check_limit("requests", self.usage.requests + 1, self._limits.requests)

    def count_answer(self, answer: RequestAnswer) -> None:
        """Count the request, tokens and cost of an answer.

        Raises:
            UsageLimitExceededError: They exceed a limit, or the cost is limited and unknown. The
                conversation must not act on the answer.
        """
        used = answer.response.usage
        previous = self.usage
        self.usage = previous.model_copy(
            update={
                "requests": previous.requests + 1,
                "input_tokens": previous.input_tokens + used.input_tokens,
                "output_tokens": previous.output_tokens + used.output_tokens,
                "cost": None if previous.cost is None or answer.cost is None else previous.cost + answer.cost,
                "cache_read_tokens": sum_amounts(previous.cache_read_tokens, used.cache_read_tokens or None),
                "cache_write_tokens": sum_amounts(
                    previous.cache_write_tokens, used.cache_write_tokens or None
                ),
            }
        )
        for name in ("input_tokens", "output_tokens", "total_tokens"):
            self._check_limit(name, getattr(self.usage, name), getattr(self._limits, name))
        self._check_cost(answer)

    def call_tools(self, number: int) -> None:
        """Count tool calls before they are executed.

        Raises:
            UsageLimitExceededError: They exceed the limit.
        """
        calls = self.usage.tool_calls + number
        self._check_limit("tool_calls", calls, self._limits.tool_calls)
        self.usage = self.usage.model_copy(update={"tool_calls": calls})

    def _check_limit(self, name: str, used: float, limit: float | None) -> None:
        """Raise UsageLimitExceededError if ``used`` exceeds the limit ``name``; None is no limit."""
        if limit is not None and used > limit:
            raise UsageLimitExceededError(
                f"a conversation exceeds its limit of {name.replace('_', ' ')}",
                expected=f"at most {limit:g}",
                found=f"{used:g}",
                fix=f"raise the limit {name!r} of the chat model or of this chat, or ask for less",
            )

    def _check_cost(self, answer: RequestAnswer) -> None:
        """Raise UsageLimitExceededError if the cost exceeds its limit, or is unknown after ``answer``."""
        limit = self._limits.cost
        cost = self.usage.cost
        if limit is not None and cost is None:
            raise UsageLimitExceededError(
                "a conversation has a limit of cost, and uses a model whose price is unknown",
                expected="a model in the price list of pydantic-ai",
                found=answer.response.model_name or "a response without the name of its model",
                fix="limit tokens instead of cost",
            )
        if cost is not None:
            self._check_limit("cost", cost, limit)
