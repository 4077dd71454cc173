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
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
    product_window,
)
from review_data import Review, ReviewDataError, load_reviews, load_sample
from review_failure import FailingReviewAnalysisAgent, FailureLog, checkpoint_directory
from review_result import (
    PUBLISHED_CORRELATION,
    as_json_lines,
    correlation,
    expected_result,
    in_stable_order,
    table,
)

from flink_agents import AgentsExecutionEnvironment

WINDOW_SECONDS = 20 * 60
SAMPLE_WINDOW_SECONDS = 20
CHECKPOINT_INTERVAL_MS = 200
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


@dataclass(frozen=True)
class ReviewJob:
    """The job and its parameters.

    Attributes:
        reviews: The snippets in stream order.
        window_seconds: Length of the windows.
        parallelism: Subtasks of the agents and windows.
        fail: Whether to fail once.
        directory: For the job's input, its checkpoints and the log of the failure.
    """

    reviews: Sequence[Review]
    window_seconds: int
    parallelism: int
    fail: bool
    directory: Path

    def run(self) -> tuple[list[AnalysedReview], list[ProductSuggestion]]:
        """Run the job; the analysed snippets in stream order, and the suggestions by product."""
        env = self._flink_environment()
        agents = AgentsExecutionEnvironment.get_execution_environment(env)

        analysis = agents.from_datastream(
            self._read_reviews(env), key_selector=lambda review: review.group
        ).apply(self._analysis_agent(), parallelism=self.parallelism)

        suggestions = agents.from_datastream(
            self._windows(analysis.to_datastream()), key_selector=lambda window: window.product
        ).apply(ProductSuggestionAgent(), parallelism=self.parallelism)

        # Filled by execute(), each result once, however often the job restarts.
        analysed_list, suggestion_list = analysis.to_list(), suggestions.to_list()
        agents.execute("review analysis")
        return in_stable_order(analysed_list, suggestion_list)

    def _flink_environment(self) -> StreamExecutionEnvironment:
        configuration = Configuration()
        configuration.set_string("execution.checkpointing.dir", checkpoint_directory(self.directory).as_uri())
        env = StreamExecutionEnvironment.get_execution_environment(configuration)
        env.enable_checkpointing(CHECKPOINT_INTERVAL_MS)
        # For the source and its timestamps: side by side they would mix up the snippets of a review.
        env.set_parallelism(1)
        return env

    def _read_reviews(self, env: StreamExecutionEnvironment) -> DataStream:
        file = self.directory / "reviews.jsonl"
        file.write_text(as_json_lines(self.reviews), encoding="utf-8")
        pause = FAIL_RUN_SECONDS / len(self.reviews) if self.fail else 0.0
        # A FileSource keeps its position in checkpoints; from_collection would begin anew.
        source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(file)).build()
        event_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(PostedAt())
        return (
            env.from_source(source, WatermarkStrategy.no_watermarks(), "reviews")
            .map(lambda line: read_review(line, pause))
            .assign_timestamps_and_watermarks(event_time)
        )

    def _analysis_agent(self) -> ReviewAnalysisAgent:
        if self.fail:
            return FailingReviewAnalysisAgent(str(self.directory), earliest=len(self.reviews) // 2)
        return ReviewAnalysisAgent()

    def _windows(self, analysed: DataStream) -> DataStream:
        total = len(self.reviews)
        return (
            analysed.map(lambda one: show_progress(one, total))
            .key_by(lambda one: one.review.product, key_type=Types.STRING())
            .window(TumblingEventTimeWindows.of(Time.seconds(self.window_seconds)))
            .process(CollectWindow())
            .set_parallelism(self.parallelism)
        )


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
    with tempfile.TemporaryDirectory(prefix="review-analysis-") as name:
        directory = Path(name)
        job = ReviewJob(reviews, window_seconds, options.parallelism, options.fail, directory)
        analysed, suggestions = job.run()
        failure = FailureLog(directory).read()

    report(analysed, suggestions, options)
    if options.fail:
        print(failure.describe())
    identical = (analysed, suggestions) == expected_result(reviews, window_seconds)
    print(f"A calculation in plain Python comes to {'the same' if identical else 'ANOTHER'} result.")
    return 0 if identical and failure.restored == options.fail else 1


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
