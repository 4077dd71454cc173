"""Summaries of a product per time window: the records between the agents, and plain functions on them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict
from review_data import Review

NEGATIVE = -0.05
"""Scores up to here count as negative: the threshold of the VADER paper."""

TOPICS = {
    "service": "support service refund warranty rude customer",
    "reliability": "broke broken cracked defective dead died fails freezes froze locked repair return",
    "playback": "play disc discs dvd dvds skips skipping",
    "display": "screen display lcd picture pictures image images viewfinder flash lens",
    "sound": "sound volume speaker speakers headphones earbuds noise microphone calls reception",
    "battery": "battery charge charging charger",
    "software": "software firmware install driver drivers windows computer transfer",
    "handling": "manual menu menus button buttons switch remote navigation scroll confusing timer",
}
"""Words by which a complaint is recognised; the first of equally frequent topics wins."""

SUGGESTIONS = {
    "service": "answer complaints faster",
    "reliability": "check units before sale",
    "playback": "test with more discs",
    "display": "improve the picture",
    "sound": "improve the sound",
    "battery": "fit a stronger battery",
    "software": "ship a software update",
    "handling": "simplify the controls",
}
"""What to do about complaints on a topic; a column of the table is that wide."""


class AnalysedReview(BaseModel):
    """What the analysis says about a snippet.

    Attributes:
        review: The snippet.
        score: Sentiment, -1 (negative) to 1 (positive).
        count: Number of snippets of the same review so far, with this one.
        mean: Mean of their scores.
    """

    model_config = ConfigDict(frozen=True)

    review: Review
    score: float
    count: int
    mean: float


class ProductWindow(BaseModel):
    """All analysed snippets on one product in one window of event time.

    Attributes:
        product: The product.
        start: Begin of the window, milliseconds since the epoch.
        end: Its end, exclusive.
        reviews: The snippets in stream order, at least one.
    """

    model_config = ConfigDict(frozen=True)

    product: str
    start: int
    end: int
    reviews: tuple[AnalysedReview, ...]


class ProductSummary(BaseModel):
    """A window in figures.

    Attributes:
        product: The product.
        start: Begin of the window, milliseconds since the epoch.
        end: Its end, exclusive.
        snippets: Number of snippets.
        mean: Mean score.
        negative_share: Share of negative snippets, 0 to 1.
        complaints: Number of complaints by topic, the most frequent first.
        worst_score: Score of the most negative snippet.
        worst_text: Its text.
    """

    model_config = ConfigDict(frozen=True)

    product: str
    start: int
    end: int
    snippets: int
    mean: float
    negative_share: float
    complaints: dict[str, int]
    worst_score: float
    worst_text: str


class ProductSuggestion(ProductSummary):
    """A summary and what follows from it.

    Attributes:
        trend: Change of the mean score since the product's last window; None in its first.
        suggestion: What to do.
    """

    trend: float | None
    suggestion: str


def product_window(product: str, start: int, end: int, reviews: Iterable[AnalysedReview]) -> ProductWindow:
    """The window with its snippets in stream order, whatever order they came in."""
    in_order = sorted(reviews, key=lambda analysed: analysed.review.number)
    return ProductWindow(product=product, start=start, end=end, reviews=tuple(in_order))


def summarise(window: ProductWindow) -> ProductSummary:
    """The figures of a window."""
    negative = [analysed for analysed in window.reviews if analysed.score <= NEGATIVE]
    worst = min(window.reviews, key=lambda analysed: (analysed.score, analysed.review.number))
    return ProductSummary(
        product=window.product,
        start=window.start,
        end=window.end,
        snippets=len(window.reviews),
        mean=math.fsum(analysed.score for analysed in window.reviews) / len(window.reviews),
        negative_share=len(negative) / len(window.reviews),
        complaints=count_complaints([analysed.review.text for analysed in negative]),
        worst_score=worst.score,
        worst_text=worst.review.text,
    )


def count_complaints(texts: Sequence[str]) -> dict[str, int]:
    """Number of ``texts`` that touch each topic, the most frequent topic first."""
    counts = Counter[str]()
    for text in texts:
        words = set(text.lower().translate(_NO_PUNCTUATION).split())
        counts.update(topic for topic, marks in TOPICS.items() if words & set(marks.split()))
    order = list(TOPICS)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], order.index(item[0]))))


_NO_PUNCTUATION = str.maketrans(dict.fromkeys(".,;:!?()\"'/-", " "))


def suggest(summary: ProductSummary, last_mean: float | None) -> ProductSuggestion:
    """The suggestion for a product, from its summary and the mean of its last window."""
    trend = None if last_mean is None else summary.mean - last_mean
    return ProductSuggestion(**dict(summary), trend=trend, suggestion=suggestion_for(summary))


def suggestion_for(summary: ProductSummary) -> str:
    """What to do, in a few words."""
    if not summary.complaints:
        return "no known complaint: keep going"
    topic, count = next(iter(summary.complaints.items()))
    return f"{topic} ({count}): {SUGGESTIONS[topic]}"
