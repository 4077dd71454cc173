"""The agents of the review example, driven by the harness, and the functions they are made of."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest
import review_agents
from review_agents import ProductSuggestionAgent, ReviewAnalysisAgent
from review_data import Review, load_sample
from review_summary import (
    SUGGESTIONS,
    TOPICS,
    AnalysedReview,
    ProductSuggestion,
    ProductWindow,
    count_complaints,
    product_window,
    suggest,
    summarise,
)

from flink_agents.api.errors import MissingExtraError
from flink_agents.testing import OperatorHarness

MakeHarness = Callable[..., OperatorHarness]


def review(text: str = "fine", number: int = 1, group: int = 1) -> Review:
    return Review(
        id=f"{group}_{number}", product="Kettle", group=group, rank=number, rating=0, text=text, number=number
    )


def analysed(score: float, text: str = "fine", number: int = 1) -> AnalysedReview:
    return AnalysedReview(review=review(text, number), score=score, count=1, mean=score)


def window(*reviews: AnalysedReview, start: int = 0) -> ProductWindow:
    return ProductWindow(product="Kettle", start=start, end=start + 1000, reviews=reviews)


class TestAnalysisAgent:
    @pytest.fixture
    def harness(self, agent_harness: MakeHarness) -> OperatorHarness:
        return agent_harness(ReviewAnalysisAgent, key_selector=lambda record: record.group)

    def test_scores_a_snippet(self, harness: OperatorHarness) -> None:
        [output] = harness.push(review("great kettle, i love it"))
        assert output.review == review("great kettle, i love it")
        assert output.score == ReviewAnalysisAgent.sentiment("great kettle, i love it") > 0.5

    def test_keeps_the_mean_of_the_snippets_of_a_review(self, harness: OperatorHarness) -> None:
        outputs = harness.push_all(review(text, n) for n, text in enumerate(("great", "awful", "a box"), 1))
        scores = [output.score for output in outputs]
        assert [output.count for output in outputs] == [1, 2, 3]
        assert [output.mean for output in outputs] == pytest.approx(
            [scores[0], sum(scores[:2]) / 2, sum(scores) / 3]
        )

    def test_reviews_do_not_mix(self, harness: OperatorHarness) -> None:
        harness.push(review("great", group=1))
        [output] = harness.push(review("awful", group=2))
        assert (output.count, output.mean) == (1, output.score)
        assert harness.memory(1)["count"] == harness.memory(2)["count"] == 1

    def test_replay_and_rescaling_change_nothing(
        self, harness: OperatorHarness, agent_harness: MakeHarness
    ) -> None:
        plain = harness.push_all(load_sample())
        replayed = agent_harness(
            ReviewAnalysisAgent, key_selector=lambda record: record.group, forced_replay=True, parallelism=3
        )
        assert replayed.push_all(load_sample()) == plain

    def test_says_what_to_install_where_vader_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing(module: str, extra: str) -> None:
            raise MissingExtraError(f"The module {module} is not installed.", fix=f"[{extra}]")

        monkeypatch.setattr(review_agents, "require_extra", missing)
        review_agents.analyst.cache_clear()
        with pytest.raises(MissingExtraError, match=r"vaderSentiment.*\n.*\[examples\]"):
            ReviewAnalysisAgent.sentiment("fine")


class TestSuggestionAgent:
    @pytest.fixture
    def harness(self, agent_harness: MakeHarness) -> OperatorHarness:
        return agent_harness(ProductSuggestionAgent, key_selector=lambda record: record.product)

    def test_turns_a_window_into_a_suggestion(self, harness: OperatorHarness) -> None:
        complaint = analysed(-0.75, "the battery is dead.", 1)
        [output] = harness.push(window(complaint, analysed(0.25, "nice", 2), start=5000))
        assert output == ProductSuggestion(
            product="Kettle",
            start=5000,
            end=6000,
            snippets=2,
            mean=-0.25,
            negative_share=0.5,
            complaints={"reliability": 1, "battery": 1},
            worst_score=-0.75,
            worst_text="the battery is dead.",
            trend=None,
            suggestion="reliability (1): check units before sale",
        )

    def test_compares_with_the_last_window(self, harness: OperatorHarness) -> None:
        outputs = harness.push_all([window(analysed(0.2)), window(analysed(0.5)), window(analysed(0.1))])
        assert [output.trend for output in outputs] == [None, pytest.approx(0.3), pytest.approx(-0.4)]


class TestSummary:
    def test_does_not_depend_on_the_order_of_arrival(self) -> None:
        reviews = [analysed(score, number=number) for number, score in enumerate((0.1, 0.2, 0.3, -0.7), 1)]
        summaries = {
            summarise(product_window("Kettle", 0, 1, order)).model_dump_json()
            for order in permutations(reviews)
        }
        assert len(summaries) == 1

    def test_the_first_of_equally_bad_snippets_is_the_worst(self) -> None:
        summary = summarise(window(analysed(-0.5, "one", 1), analysed(-0.5, "two", 2)))
        assert (summary.worst_score, summary.worst_text) == (-0.5, "one")

    @pytest.mark.parametrize(("score", "share"), [(-0.05, 1.0), (-0.04, 0.0), (0.5, 0.0)])
    def test_the_threshold_of_the_paper_is_negative(self, score: float, share: float) -> None:
        assert summarise(window(analysed(score))).negative_share == share

    def test_praise_is_no_complaint(self) -> None:
        assert summarise(window(analysed(0.6, "a great battery"))).complaints == {}


class TestSuggestions:
    @pytest.mark.parametrize("topic", TOPICS)
    def test_every_word_of_a_topic_is_recognised(self, topic: str) -> None:
        for word in TOPICS[topic].split():
            assert count_complaints([f"The {word.upper()}, again!"]) == {topic: 1}

    def test_no_word_belongs_to_two_topics(self) -> None:
        words = [word for marks in TOPICS.values() for word in marks.split()]
        assert len(words) == len(set(words))

    def test_every_topic_has_a_suggestion(self) -> None:
        assert TOPICS.keys() == SUGGESTIONS.keys()

    def test_a_snippet_counts_once_for_a_topic(self) -> None:
        assert count_complaints(["battery, battery, battery", "charger"]) == {"battery": 2}

    def test_the_most_frequent_topic_comes_first(self) -> None:
        assert list(count_complaints(["the menu", "the manual", "the noise"])) == ["handling", "sound"]

    def test_equally_frequent_topics_keep_their_order(self) -> None:
        assert list(count_complaints(["the menu", "the noise"])) == ["sound", "handling"]

    def test_the_most_frequent_complaint_decides(self) -> None:
        reviews = [analysed(-0.5, text, number) for number, text in enumerate(("menu", "noise", "menu"), 1)]
        suggestion = suggest(summarise(window(*reviews)), last_mean=None)
        assert suggestion.suggestion == "handling (2): simplify the controls"

    def test_without_complaints_there_is_nothing_to_do(self) -> None:
        suggestion = suggest(summarise(window(analysed(0.5))), last_mean=0.25)
        assert (suggestion.suggestion, suggestion.trend) == ("no known complaint: keep going", 0.25)
