"""The result of ``review_analysis.py``: the expected values, and the output."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from review_agents import ReviewAnalysisAgent
from review_data import Review
from review_summary import AnalysedReview, ProductSuggestion, product_window, suggest, summarise

PUBLISHED_CORRELATION = 0.565
"""Hutto & Gilbert (2014), Table 4: VADER, Amazon.com product reviews, correlation to ground truth."""


def sentiment_of(review: Review) -> float:
    """The score that the word list gives a snippet."""
    return ReviewAnalysisAgent.sentiment(review.text)


def expected_result(
    reviews: Sequence[Review], window_seconds: int, score_of: Callable[[Review], float] = sentiment_of
) -> tuple[list[AnalysedReview], list[ProductSuggestion]]:
    """What the job has to come to, calculated without streams, agents and memory.

    Args:
        reviews: The snippets in stream order.
        window_seconds: Length of the windows.
        score_of: Gives the score of a snippet.
    """
    counts = Counter[int]()
    totals = defaultdict[int, float](float)
    windows: defaultdict[tuple[str, int], list[AnalysedReview]] = defaultdict(list)
    for review in reviews:
        score = score_of(review)
        counts[review.group] += 1
        totals[review.group] += score
        count = counts[review.group]
        analysed = AnalysedReview(review=review, score=score, count=count, mean=totals[review.group] / count)
        windows[review.product, review.posted_at // (window_seconds * 1000)].append(analysed)

    suggestions: list[ProductSuggestion] = []
    last_means: dict[str, float] = {}
    for (product, index), members in sorted(windows.items()):
        start, end = (number * window_seconds * 1000 for number in (index, index + 1))
        summary = summarise(product_window(product, start, end, members))
        suggestions.append(suggest(summary, last_means.get(product)))
        last_means[product] = summary.mean
    return in_stable_order([result for members in windows.values() for result in members], suggestions)


def in_stable_order(
    analysed: list[AnalysedReview], suggestions: list[ProductSuggestion]
) -> tuple[list[AnalysedReview], list[ProductSuggestion]]:
    """The snippets in stream order, the suggestions by product and window."""
    return (
        sorted(analysed, key=lambda result: result.review.number),
        sorted(suggestions, key=lambda suggestion: (suggestion.product, suggestion.start)),
    )


def correlation(analysed: Sequence[AnalysedReview]) -> float:
    """Pearson's correlation of the agent's scores with the ratings by people."""
    return statistics.correlation(
        [result.score for result in analysed], [result.review.rating for result in analysed]
    )


def as_json_lines(records: Sequence[Review | ProductSuggestion]) -> str:
    """One JSON object a line."""
    return "".join(record.model_dump_json() + "\n" for record in records)


def table(suggestions: Sequence[ProductSuggestion]) -> str:
    """The suggestions for people to read, at most 100 columns wide."""
    head = (
        f"{'product':<12} {'window (UTC)':<17} {'count':>5} {'mean':>6} {'trend':>6} {'neg.':>5}  suggestion"
    )
    lines = [head, "-" * 100]
    for suggestion in suggestions:
        trend = "" if suggestion.trend is None else f"{suggestion.trend:+.2f}"
        window = f"{clock(suggestion.start)}-{clock(suggestion.end)}"
        lines.append(
            f"{suggestion.product:<12} {window} {suggestion.snippets:>5} {suggestion.mean:>+6.2f} "
            f"{trend:>6} {suggestion.negative_share:>5.0%}  {suggestion.suggestion}"
        )
        lines.append(f"    worst ({suggestion.worst_score:+.2f}): {shortened(suggestion.worst_text, 80)}")
    return "\n".join(lines)


def clock(milliseconds: int) -> str:
    """A time of day, UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%H:%M:%S")


def shortened(text: str, width: int) -> str:
    """``text`` on at most ``width`` columns."""
    return text if len(text) <= width else text[: width - 3] + "..."
