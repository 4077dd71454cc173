r"""The job of ``review_analysis.py`` on a cluster, with the analyst behind durable calls.

::

    flink run -Dflink-agents.action-state.store=kafka ... \
        -pyclientexec python -py examples/cluster/review_on_cluster.py --sample --directory /data/reviews

Each sentiment is requested once, even if TaskManagers fail. An analyst that is paid by the
word would be paid once. ``docker-compose.yml`` has the cluster and the whole command; the
directory ``examples`` is on the PYTHONPATH of client and workers.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from review_agents import ReviewAnalysisAgent, ReviewScored, analyst
from review_analysis import SAMPLE_WINDOW_SECONDS, WINDOW_SECONDS, at_least_one, run_job
from review_data import ReviewDataError, load_reviews, load_sample
from review_result import expected_result, table

from flink_agents import InputEvent, RunnerContext, action


def sentiment(text: str) -> float:
    """Sentiment of an English text, from -1 (negative) to 1 (positive)."""
    return analyst().polarity_scores(text)["compound"]


class DurableReviewAnalysisAgent(ReviewAnalysisAgent):
    """Asks for each sentiment once, and records the answer."""

    name = "ReviewAnalysisAgent"

    @action(InputEvent)
    def score(self, event: InputEvent, ctx: RunnerContext) -> ReviewScored:
        score = ctx.durable_execute(sentiment, event.input.text, name="sentiment", result_type=float)
        return ReviewScored(review=event.input, score=score)


def main() -> int:
    """Run the job and print its result; 0 where it is the expected one."""
    parser = argparse.ArgumentParser(description="The review example on a cluster.")
    parser.add_argument("--sample", action="store_true", help="use 33 made-up snippets, without network")
    parser.add_argument("--directory", type=Path, required=True, help="which client and workers share")
    parser.add_argument("--parallelism", type=at_least_one, default=2, metavar="N")
    options = parser.parse_args()
    try:
        reviews = load_sample() if options.sample else load_reviews()
    except ReviewDataError as error:
        print(f"review data: {error}", file=sys.stderr)
        return 1
    window_seconds = SAMPLE_WINDOW_SECONDS if options.sample else WINDOW_SECONDS
    options.directory.mkdir(parents=True, exist_ok=True)
    agent = DurableReviewAnalysisAgent()
    result = run_job(reviews, window_seconds, options.parallelism, options.directory, None, agent)
    print(f"\n{table(result[1])}\n")
    identical = result == expected_result(reviews, window_seconds)
    print(f"A calculation in plain Python comes to {'the same' if identical else 'ANOTHER'} result.")
    return 0 if identical else 1


if __name__ == "__main__":
    sys.exit(main())
