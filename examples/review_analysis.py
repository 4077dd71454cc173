"""Customer reviews in, suggestions per product out: two agents with a time window between them.

::

    snippets -> ReviewAnalysisAgent (per review) -> 20-minute windows (per product)
             -> ProductSuggestionAgent (per product) -> table and JSON lines

Run it with ``python examples/review_analysis.py``. With ``--fail`` the job fails in its middle,
goes back to its last checkpoint, and comes to the same result: the result of every run is
compared with a calculation in plain Python. ``--sample`` needs no network.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from time import sleep

from pyflink.common import Configuration, Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import DataStream, ProcessWindowFunction, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSource, StreamFormat
from pyflink.datastream.window import TimeWindow, TumblingEventTimeWindows
from review_agents import (
    AnalysedReview,
    ProductSuggestion,
    ProductSuggestionAgent,
    ProductWindow,
    ReviewAnalysisAgent,
    sentiment_of,
    suggest,
    summarise,
)
from review_data import Review, ReviewDataError, load_reviews, load_sample
from review_failure import FailingReviewAnalysisAgent, FailureLog

from flink_agents import AgentsExecutionEnvironment

PUBLISHED_CORRELATION = 0.565
"""Hutto & Gilbert (2014), Table 4: VADER, Amazon.com product reviews, correlation to ground truth."""

WINDOW_SECONDS = 20 * 60
SAMPLE_WINDOW_SECONDS = 20
FAIL_RUN_SECONDS = 6.0
"""How long the source of a ``--fail`` run takes, so that checkpoints complete on the way."""


# -- the job --------------------------------------------------------------------------------


class PostedAt(TimestampAssigner):
    """The event time of a snippet."""

    def extract_timestamp(self, value: Review, record_timestamp: int) -> int:
        return value.posted_at


def read_review(line: str, pause: float) -> Review:
    """A snippet from its JSON line, after ``pause`` seconds."""
    if pause:
        sleep(pause)
    return Review.model_validate_json(line)


def show_progress(analysed: AnalysedReview, total: int) -> AnalysedReview:
    """Print how far the stream of ``total`` snippets has come; hands its input on."""
    number = analysed.review.number
    if number % 500 == 0 or number == total:
        print(f"  snippet {number:,} of {total:,} analysed", flush=True)
    return analysed


class CollectWindow(ProcessWindowFunction[AnalysedReview, ProductWindow, str, TimeWindow]):
    """Hands a full window on as one record."""

    def process(
        self,
        key: str,
        context: ProcessWindowFunction.Context[TimeWindow],
        elements: Iterable[AnalysedReview],
    ) -> Iterable[ProductWindow]:
        window = context.window()
        yield product_window(key, window.start, window.end, elements)


def product_window(product: str, start: int, end: int, reviews: Iterable[AnalysedReview]) -> ProductWindow:
    """The window with its snippets in stream order, whatever order they came in."""
    in_order = sorted(reviews, key=lambda analysed: analysed.review.number)
    return ProductWindow(product=product, start=start, end=end, reviews=tuple(in_order))


def read_reviews(env: StreamExecutionEnvironment, file: Path, pause: float) -> DataStream:
    """The snippets of a JSON lines file as a stream with event time.

    A ``FileSource`` keeps its position in checkpoints; ``from_collection`` would begin anew.
    """
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(file)).build()
    lines = env.from_source(source, WatermarkStrategy.no_watermarks(), "reviews")
    event_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(PostedAt())
    return (
        lines.set_parallelism(1)
        .map(lambda line: read_review(line, pause))
        .set_parallelism(1)
        .assign_timestamps_and_watermarks(event_time)
        .set_parallelism(1)
    )


class ReviewJob:
    """The job and its parameters.

    Args:
        reviews: The snippets in stream order.
        window_seconds: Length of the windows.
        parallelism: Subtasks of the agents and windows.
        fail: Whether to fail once.
        directory: For the job's input, its checkpoints and the log of the failure.
    """

    def __init__(
        self, reviews: Sequence[Review], window_seconds: int, parallelism: int, fail: bool, directory: str
    ) -> None:
        self.reviews = reviews
        self.window_seconds = window_seconds
        self.parallelism = parallelism
        self.fail = fail
        self.directory = directory
        self.failure_log = FailureLog(directory)

    def run(self) -> tuple[list[AnalysedReview], list[ProductSuggestion]]:
        """Run the job; the analysed snippets in stream order, and the suggestions by product."""
        env = self._flink_environment()
        agents = AgentsExecutionEnvironment.get_execution_environment(env)
        total = len(self.reviews)
        pause = FAIL_RUN_SECONDS / total if self.fail else 0.0

        analysis = agents.from_datastream(
            read_reviews(env, self._write_input(), pause), key_selector=lambda review: review.group
        ).apply(self._analysis_agent(), parallelism=self.parallelism)

        windows = (
            analysis.to_datastream()
            .map(lambda analysed: show_progress(analysed, total))
            .key_by(lambda analysed: analysed.review.product, key_type=Types.STRING())
            .window(TumblingEventTimeWindows.of(Time.seconds(self.window_seconds)))
            .process(CollectWindow())
        )
        suggestions = agents.from_datastream(windows, key_selector=lambda window: window.product).apply(
            ProductSuggestionAgent(), parallelism=self.parallelism
        )

        analysed_list, suggestion_list = analysis.to_list(), suggestions.to_list()
        agents.execute("review analysis")
        return in_stable_order(analysed_list, suggestion_list)

    def _flink_environment(self) -> StreamExecutionEnvironment:
        configuration = Configuration()
        configuration.set_string("execution.checkpointing.dir", self.failure_log.checkpoints.as_uri())
        env = StreamExecutionEnvironment.get_execution_environment(configuration)
        env.enable_checkpointing(200)
        env.set_parallelism(self.parallelism)
        return env

    def _analysis_agent(self) -> ReviewAnalysisAgent:
        if self.fail:
            return FailingReviewAnalysisAgent(self.directory, earliest=len(self.reviews) // 2)
        return ReviewAnalysisAgent()

    def _write_input(self) -> Path:
        file = Path(self.directory) / "reviews.jsonl"
        file.write_text(as_json_lines(self.reviews), encoding="utf-8")
        return file


# -- the result -----------------------------------------------------------------------------


def expected_result(
    reviews: Sequence[Review], window_seconds: int
) -> tuple[list[AnalysedReview], list[ProductSuggestion]]:
    """What the job has to come to, calculated without streams, agents and memory."""
    counts, totals = Counter[int](), defaultdict[int, float](float)
    windows: defaultdict[tuple[str, int], list[AnalysedReview]] = defaultdict(list)
    for review in reviews:
        score = sentiment_of(review.text)
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
    return in_stable_order([one for members in windows.values() for one in members], suggestions)


def in_stable_order(
    analysed: list[AnalysedReview], suggestions: list[ProductSuggestion]
) -> tuple[list[AnalysedReview], list[ProductSuggestion]]:
    """The snippets in stream order, the suggestions by product and window."""
    return (
        sorted(analysed, key=lambda one: one.review.number),
        sorted(suggestions, key=lambda one: (one.product, one.start)),
    )


def correlation(analysed: Sequence[AnalysedReview]) -> float:
    """Pearson's correlation of the agent's scores with the ratings by people."""
    return statistics.correlation([one.score for one in analysed], [one.review.rating for one in analysed])


def as_json_lines(records: Sequence[Review | ProductSuggestion]) -> str:
    """One JSON object a line."""
    return "".join(record.model_dump_json() + "\n" for record in records)


def table(suggestions: Sequence[ProductSuggestion]) -> str:
    """The suggestions for people to read, at most 100 columns wide."""
    head = (
        f"{'product':<12} {'window (UTC)':<17} {'count':>5} {'mean':>6} {'trend':>6} {'neg.':>5}  suggestion"
    )
    lines = [head, "-" * 100]
    for one in suggestions:
        trend = "" if one.trend is None else f"{one.trend:+.2f}"
        lines.append(
            f"{one.product:<12} {clock(one.start)}-{clock(one.end)} {one.snippets:>5} {one.mean:>+6.2f} "
            f"{trend:>6} {one.negative_share:>5.0%}  {one.suggestion}"
        )
        lines.append(f"    worst ({one.worst_score:+.2f}): {shortened(one.worst_text, 80)}")
    return "\n".join(lines)


def clock(milliseconds: int) -> str:
    """A time of day, UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc).strftime("%H:%M:%S")


def shortened(text: str, width: int) -> str:
    """``text`` on at most ``width`` columns."""
    return text if len(text) <= width else text[: width - 3] + "..."


# -- the command ----------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and print its result; 0 where it is the expected one."""
    options = parse_arguments(arguments)
    try:
        reviews = load_sample() if options.sample else load_reviews()
    except ReviewDataError as error:
        print(f"review data: {error}", file=sys.stderr)
        return 1
    window_seconds = SAMPLE_WINDOW_SECONDS if options.sample else WINDOW_SECONDS

    print(f"Analysing {len(reviews):,} review snippets; Flink takes some seconds to start ...", flush=True)
    with tempfile.TemporaryDirectory(prefix="review-analysis-") as directory:
        job = ReviewJob(reviews, window_seconds, options.parallelism, options.fail, directory)
        result = job.run()
        failed_at, resumed_at = job.failure_log.failed_at, job.failure_log.resumed_at

    analysed, suggestions = result
    report(analysed, suggestions, options)
    if options.fail:
        print(describe_failure(failed_at, resumed_at))
        if failed_at is None or resumed_at is None:
            return 1
    same = result == expected_result(reviews, window_seconds)
    print(
        f"Compared with a calculation in plain Python, the result is {'identical' if same else 'DIFFERENT'}."
    )
    return 0 if same else 1


def report(
    analysed: Sequence[AnalysedReview], suggestions: Sequence[ProductSuggestion], options: argparse.Namespace
) -> None:
    """Print the result and write the JSON lines."""
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(as_json_lines(suggestions), encoding="utf-8")
    print(f"\n{table(suggestions)}\n\nWritten to {options.output}.")
    print(f"Correlation of scores and ratings by people: {correlation(analysed):.3f} (Pearson)")
    if not options.sample:
        print(f"Published for VADER on these snippets:       {PUBLISHED_CORRELATION:.3f} (paper, Table 4)")


def describe_failure(failed_at: int | None, resumed_at: int | None) -> str:
    """What the failure did to the job, in one sentence."""
    if failed_at is None:
        return "The job was too fast: it ended before a checkpoint was complete, so it did not fail."
    if resumed_at is None:
        return f"The job failed at snippet {failed_at:,}, and no snippet came after that."
    return (
        f"The job failed at snippet {failed_at:,} and went on from its checkpoint at snippet {resumed_at:,}."
    )


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description="Two agents that analyse product reviews.")
    parser.add_argument("--fail", action="store_true", help="let the job fail once and restore itself")
    parser.add_argument("--sample", action="store_true", help="use 33 made-up snippets, without network")
    parser.add_argument("--parallelism", type=int, default=1, metavar="N", help="subtasks (default: 1)")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("output/review_suggestions.jsonl"),
        metavar="FILE",
        help="JSON lines to write (default: %(default)s)",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
