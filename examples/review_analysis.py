"""Customer reviews in, suggestions per product out: two agents with a time window between them.

::

    snippets -> ReviewAnalysisAgent (per review) -> 20-minute windows (per product)
             -> ProductSuggestionAgent (per product) -> table and JSON lines

Run it with ``python examples/review_analysis.py``. With ``--fail`` the job fails in its middle,
restores its last checkpoint, and has the same result: the result of every run is
compared with a calculation in plain Python. With ``--kill`` the script and its JVM are killed in the
middle and started again: the second start resumes. ``--sample`` needs no network. With ``--model
provider:name`` a language model judges the snippets; ``--base-url`` names another server than the provider's.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyflink.common import Configuration, Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import DataStream, ProcessWindowFunction, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSource, StreamFormat
from pyflink.datastream.window import TimeWindow, TumblingEventTimeWindows
from review_agents import ProductSuggestionAgent, ReviewAnalysisAgent
from review_data import Review, ReviewDataError, load_reviews, load_sample
from review_failure import FailOnce, HoldOnce, run_and_kill
from review_result import (
    PUBLISHED_CORRELATION,
    as_json_lines,
    correlation,
    expected_result,
    in_stable_order,
    sentiment_of,
    table,
)
from review_summary import AnalysedReview, ProductSuggestion, ProductWindow, product_window

from flink_agents import AgentsExecutionEnvironment, EventTime

WINDOW_SECONDS = 20 * 60
SAMPLE_WINDOW_SECONDS = 20
CHECKPOINT_INTERVAL_MS = 200


# -- the job --------------------------------------------------------------------------------


def run_job(
    reviews: Sequence[Review],
    window_seconds: int,
    parallelism: int,
    directory: Path,
    trouble: FailOnce | HoldOnce | None,
    analyst: ReviewAnalysisAgent | None = None,
    config: Mapping[str, Any] | None = None,
) -> tuple[list[AnalysedReview], list[ProductSuggestion]]:
    """Run the job.

    Args:
        reviews: The snippets in stream order.
        window_seconds: Length of the windows.
        parallelism: Subtasks of the agents and windows.
        directory: For the job's input and its checkpoints.
        trouble: What makes the job fail or holds it, or None.
        analyst: The first agent, where it is one that makes calls.
        config: Options of the job.

    Returns:
        The analysed snippets in stream order, and the suggestions by product.
    """
    total = len(reviews)
    resumes = isinstance(trouble, HoldOnce)
    # The directory of a run that is not killed is removed at its end: there is nothing to resume.
    where = (
        {"local.resume": "require", "local.state-dir": str(directory)}
        if resumes
        else {"local.resume": "never"}
    )
    agents = AgentsExecutionEnvironment.get_execution_environment(config={**where, **(config or {})})
    env = agents.stream_env
    configure(env, checkpoints=None if resumes else directory / "checkpoints")

    snippets = read_snippets(env, reviews, directory / "reviews.jsonl", trouble)
    analysis = agents.from_datastream(snippets, key_selector=lambda review: review.group).apply(
        # An agent whose calls take time keeps the windows behind it from ending before its answers.
        analyst or ReviewAnalysisAgent(),
        parallelism=parallelism,
        event_time=EventTime.hold_watermarks() if analyst else EventTime.ignore(),
    )
    windows = (
        analysis.to_datastream()
        .map(lambda analysed: show_progress(analysed, total))
        .key_by(lambda analysed: analysed.review.product, key_type=Types.STRING())
        .window(TumblingEventTimeWindows.of(Time.seconds(window_seconds)))
        .process(CollectWindow())
        .set_parallelism(parallelism)
    )
    suggestions = agents.from_datastream(windows, key_selector=lambda window: window.product).apply(
        ProductSuggestionAgent(), parallelism=parallelism
    )

    # Filled by execute(), with each result once, however often the job restarts.
    analysed_list = analysis.to_list()
    suggestion_list = suggestions.to_list()
    agents.execute("review analysis")
    return in_stable_order(analysed_list, suggestion_list)


def configure(env: StreamExecutionEnvironment, checkpoints: Path | None) -> None:
    """Set what holds for the whole job; a job that resumes has a place for its checkpoints."""
    if checkpoints is not None:
        configuration = Configuration()
        configuration.set_string("execution.checkpointing.dir", checkpoints.as_uri())
        env.configure(configuration)
    env.enable_checkpointing(CHECKPOINT_INTERVAL_MS)
    # For the source and its timestamps: in parallel, they would mix up the snippets of a review.
    env.set_parallelism(1)


def read_snippets(
    env: StreamExecutionEnvironment,
    reviews: Sequence[Review],
    file: Path,
    trouble: FailOnce | HoldOnce | None,
) -> DataStream:
    """The snippets as a stream with event time; written to ``file`` and read from there.

    A FileSource keeps its position in checkpoints; from_collection would begin anew.
    """
    if not file.exists():
        file.write_text(as_json_lines(reviews), encoding="utf-8")
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(file)).build()
    snippets = env.from_source(source, WatermarkStrategy.no_watermarks(), "reviews").map(
        Review.model_validate_json
    )
    if trouble is not None:
        snippets = snippets.map(trouble.hand_on)
    event_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(PostedAt())
    return snippets.assign_timestamps_and_watermarks(event_time)


class PostedAt(TimestampAssigner):
    """The event time of a snippet."""

    def extract_timestamp(self, value: Review, record_timestamp: int) -> int:
        return value.posted_at


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


# -- the command ----------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job and print its result; 0 where it is the expected one."""
    options = parse_arguments(arguments)
    if options.kill and options.directory is None:
        with tempfile.TemporaryDirectory(prefix="review-analysis-") as name:
            return run_and_kill([__file__, *(arguments or sys.argv[1:]), "--directory", name], Path(name))
    try:
        reviews = load_sample() if options.sample else load_reviews()
    except ReviewDataError as error:
        print(f"review data: {error}", file=sys.stderr)
        return 1
    window_seconds = SAMPLE_WINDOW_SECONDS if options.sample else WINDOW_SECONDS

    print(f"Analysing {len(reviews):,} review snippets; Flink takes some seconds to start ...", flush=True)
    with tempfile.TemporaryDirectory(prefix="review-analysis-") as name:
        directory = options.directory or Path(name)
        fail_once = FailOnce(len(reviews), directory / "checkpoints", directory) if options.fail else None
        analyst, config = model_analyst(options, directory)
        trouble = HoldOnce(len(reviews), directory) if options.kill else fail_once
        result = run_job(reviews, window_seconds, options.parallelism, directory, trouble, analyst, config)
        report(*result, options)
        if fail_once is not None:
            print(fail_once.describe())
        restored = fail_once is None or fail_once.restored()

    judged = {analysed.review.number: analysed.score for analysed in result[0]}
    score_of = sentiment_of if analyst is None else lambda review: judged.get(review.number, math.nan)
    identical = result == expected_result(reviews, window_seconds, score_of)
    print(f"A calculation in plain Python comes to {'the same' if identical else 'ANOTHER'} result.")
    return 0 if identical and restored else 1


def model_analyst(
    options: argparse.Namespace, directory: Path
) -> tuple[ReviewAnalysisAgent | None, dict[str, Any] | None]:
    """The agent that asks a model, and where its answers are recorded; None without ``--model``."""
    if options.model is None:
        return None, None
    from review_model_agent import ModelReviewAnalysisAgent

    agent = ModelReviewAnalysisAgent(options.model, options.base_url)
    return agent, {"job-identifier": "reviews", "action-state.sqlite.path": str(directory / "answers.sqlite")}


def report(
    analysed: Sequence[AnalysedReview], suggestions: Sequence[ProductSuggestion], options: argparse.Namespace
) -> None:
    """Print the result and write the JSON lines."""
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(as_json_lines(suggestions), encoding="utf-8")
    print(f"\n{table(suggestions)}\n\nWritten to {options.output}.")
    print(f"Correlation of scores and ratings by people: {correlation(analysed):.3f} (Pearson)")
    if not options.sample and options.model is None:
        print(
            f"Published for VADER on these snippets:       {PUBLISHED_CORRELATION:.3f} "
            "(Hutto & Gilbert 2014, ICWSM, Table 4)"
        )


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description="Two agents that analyse product reviews.")
    parser.add_argument("--fail", action="store_true", help="let the job fail once and restore itself")
    parser.add_argument(
        "--kill", action="store_true", help="kill the script and its JVM in the middle, and start it again"
    )
    # Where the job of a script that is killed keeps its data.
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--sample", action="store_true", help="use 33 made-up snippets, without network")
    parser.add_argument("--model", metavar="PROVIDER:NAME", help="let this model judge the snippets")
    parser.add_argument("--base-url", metavar="URL", help="where the model is, if not at the provider's")
    parser.add_argument(
        "--parallelism", type=at_least_one, default=1, metavar="N", help="subtasks (default: %(default)s)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("output/review_suggestions.jsonl"),
        metavar="FILE",
        help="JSON lines to write (default: %(default)s)",
    )
    return parser.parse_args(arguments)


def at_least_one(text: str) -> int:
    """The number in ``text``, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
