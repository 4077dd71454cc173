"""The two agents of ``review_analysis.py``.

``ReviewAnalysisAgent`` scores one snippet at a time, for each review by itself;
``ProductSuggestionAgent`` turns all reviews of a product in a time window into a suggestion.
The analyst is VADER, a word list with rules: no network, and the same answer each time.
"""

from __future__ import annotations

import functools
from typing import Any

from review_data import Review
from review_summary import AnalysedReview, ProductSuggestion, ProductSummary, suggest, summarise

from flink_agents import Agent, Event, InputEvent, OutputEvent, ResourceType, RunnerContext, action, tool
from flink_agents.runtime.flink.launch.packages import require_extra


@functools.cache
def analyst() -> Any:
    """VADER, which reads a word list of 7,500 lines: once per process, when the first snippet arrives."""
    return require_extra("vaderSentiment.vaderSentiment", "examples").SentimentIntensityAnalyzer()


class ReviewScored(Event):
    """A snippet has its score."""

    review: Review
    score: float


class ReviewAnalysisAgent(Agent):
    """Scores each snippet and keeps the running mean of its review, which is the key."""

    output_type = AnalysedReview

    @tool
    @staticmethod
    def sentiment(text: str) -> float:
        """Sentiment of an English text, from -1 (negative) to 1 (positive)."""
        return analyst().polarity_scores(text)["compound"]

    @action(InputEvent)
    def score(self, event: InputEvent, ctx: RunnerContext) -> ReviewScored:
        review: Review = event.input
        sentiment = ctx.get_resource("sentiment", ResourceType.TOOL)
        return ReviewScored(review=review, score=sentiment(text=review.text))

    @action(ReviewScored)
    def update_mean(self, event: ReviewScored, ctx: RunnerContext) -> OutputEvent:
        memory = ctx.short_term_memory
        count = memory.get("count", 0) + 1
        total = memory.get("total", 0.0) + event.score
        memory.set("count", count)
        memory.set("total", total)
        return OutputEvent(
            output=AnalysedReview(review=event.review, score=event.score, count=count, mean=total / count)
        )


class ProductSummarised(Event):
    """A window has its figures."""

    summary: ProductSummary


class ProductSuggestionAgent(Agent):
    """Suggests what to do about a product, which is the key, window by window."""

    output_type = ProductSuggestion

    @action(InputEvent)
    def summarise(self, event: InputEvent, ctx: RunnerContext) -> ProductSummarised:
        return ProductSummarised(summary=summarise(event.input))

    @action(ProductSummarised)
    def suggest(self, event: ProductSummarised, ctx: RunnerContext) -> OutputEvent:
        last_mean = ctx.short_term_memory.get("mean")
        ctx.short_term_memory.set("mean", event.summary.mean)
        return OutputEvent(output=suggest(event.summary, last_mean))
