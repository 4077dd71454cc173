"""What the review example prints and compares."""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import math
import random

import pytest
from review_data import Review, load_sample
from review_result import as_json_lines, correlation, expected_result, in_stable_order, table
from review_summary import AnalysedReview


def rated(pairs: list[tuple[float, float]]) -> list[AnalysedReview]:
    return [
        AnalysedReview(
            review=Review(id="1_1", product="p", group=1, rank=1, rating=rating, text="", number=1),
            score=score,
            count=1,
            mean=score,
        )
        for score, rating in pairs
    ]


class TestCorrelation:
    @pytest.mark.parametrize(
        ("pairs", "value"),
        [
            ([(0.1, 1), (0.2, 2), (0.3, 3)], 1.0),
            ([(0.1, 3), (0.2, 2), (0.3, 1)], -1.0),
            ([(1, 1), (2, 3), (3, 2)], 0.5),
            ([(0, 0), (1, 0), (0, 1), (1, 1)], 0.0),
        ],
    )
    def test_of_known_pairs(self, pairs: list[tuple[float, float]], value: float) -> None:
        assert correlation(rated(pairs)) == pytest.approx(value)

    def test_is_that_of_the_definition(self) -> None:
        noise = random.Random(1)
        pairs = [(x / 50, x / 50 + noise.gauss(0, 0.5)) for x in range(50)]
        x_mean, y_mean = (math.fsum(column) / 50 for column in zip(*pairs, strict=True))
        covariance = math.fsum((x - x_mean) * (y - y_mean) for x, y in pairs)
        x_square = math.fsum((x - x_mean) ** 2 for x, _ in pairs)
        y_square = math.fsum((y - y_mean) ** 2 for _, y in pairs)
        assert correlation(rated(pairs)) == pytest.approx(covariance / math.sqrt(x_square * y_square))


class TestExpectedResult:
    def test_covers_every_snippet_once(self) -> None:
        reviews = load_sample()
        analysed, suggestions = expected_result(reviews, 20)
        assert [analysis.review for analysis in analysed] == reviews
        assert sum(suggestion.snippets for suggestion in suggestions) == len(reviews)

    def test_one_long_window_has_a_line_for_each_product(self) -> None:
        _, suggestions = expected_result(load_sample(), 1200)
        assert [suggestion.product for suggestion in suggestions] == ["Desk lamp", "Headphones", "Kettle"]
        assert all(
            suggestion.end - suggestion.start == 1_200_000 and suggestion.trend is None
            for suggestion in suggestions
        )

    def test_trends_follow_the_windows_of_a_product(self) -> None:
        _, suggestions = expected_result(load_sample(), 20)
        first, second = (suggestion for suggestion in suggestions if suggestion.product == "Kettle")
        assert (first.trend, second.trend) == (None, second.mean - first.mean)

    def test_the_sample_agrees_with_its_ratings(self) -> None:
        assert correlation(expected_result(load_sample(), 20)[0]) > 0.9

    def test_the_order_of_arrival_does_not_show(self) -> None:
        analysed, suggestions = expected_result(load_sample(), 20)
        assert in_stable_order(analysed[::-1], suggestions[::-1]) == (analysed, suggestions)


class TestOutput:
    def test_the_table_is_aligned_and_fits(self) -> None:
        lines = table(expected_result(load_sample(), 20)[1]).splitlines()
        assert max(map(len, lines)) <= 100
        column = lines[0].index("suggestion")
        assert all(line[column - 2 : column] == "  " and line[column] != " " for line in lines[2::2])

    def test_a_long_snippet_is_cut_in_the_table_only(self) -> None:
        _, [suggestion, *_] = expected_result(load_sample(), 20)
        long = suggestion.model_copy(update={"worst_text": "bad " * 60})
        assert table([long]).splitlines()[-1].endswith("...")
        assert json.loads(as_json_lines([long]))["worst_text"] == "bad " * 60

    def test_json_lines(self) -> None:
        _, suggestions = expected_result(load_sample(), 20)
        lines = as_json_lines(suggestions).splitlines()
        assert [
            type(suggestion).model_validate_json(line)
            for suggestion, line in zip(suggestions, lines, strict=True)
        ] == (suggestions)
