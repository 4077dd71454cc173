"""The failure of ``--fail``: once, not before a checkpoint, and with a trace of what came after."""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from review_data import load_sample
from review_failure import FailingReviewAnalysisAgent, Failure, FailureLog, checkpoint_directory

from flink_agents.api.errors import ActionFailedError
from flink_agents.testing import OperatorHarness

MakeHarness = Callable[..., OperatorHarness]


def complete_checkpoint(directory: Path) -> None:
    checkpoint = checkpoint_directory(directory) / "job" / "chk-1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "_metadata").touch()


@pytest.fixture
def make(agent_harness: MakeHarness, tmp_path: Path) -> Callable[[], OperatorHarness]:
    return lambda: agent_harness(
        FailingReviewAnalysisAgent(str(tmp_path), earliest=5), key_selector=lambda record: record.group
    )


class TestFailingAgent:
    def test_does_not_fail_without_a_checkpoint(
        self, make: Callable[[], OperatorHarness], tmp_path: Path
    ) -> None:
        assert len(make().push_all(load_sample())) == 33
        assert FailureLog(tmp_path).read() == Failure(failed_at=None, resumed_at=None)

    def test_a_checkpoint_that_is_being_written_is_none(
        self, make: Callable[[], OperatorHarness], tmp_path: Path
    ) -> None:
        (checkpoint_directory(tmp_path) / "job" / "chk-1").mkdir(parents=True)
        assert len(make().push_all(load_sample())) == 33

    def test_fails_once_and_goes_on_after_a_restore(
        self, make: Callable[[], OperatorHarness], tmp_path: Path
    ) -> None:
        complete_checkpoint(tmp_path)
        harness = make()
        harness.push_all(load_sample()[:3])
        checkpoint = harness.snapshot()
        with pytest.raises(ActionFailedError, match="--fail: failing once, at snippet 5"):
            harness.push_all(load_sample()[3:])

        harness.restore(checkpoint)
        harness.push_all(load_sample()[3:])
        assert FailureLog(tmp_path).read() == Failure(failed_at=5, resumed_at=4)
        assert [output.review.number for output in harness.outputs] == list(range(1, 34))

    def test_keeps_the_name_and_so_the_state_of_the_agent(self, tmp_path: Path) -> None:
        agent = FailingReviewAnalysisAgent(str(tmp_path), earliest=5)
        assert agent.agent_name == "ReviewAnalysisAgent"


class TestLog:
    def test_only_the_first_subtask_writes(self, tmp_path: Path) -> None:
        first, second = FailureLog(tmp_path), FailureLog(tmp_path)
        assert [first.note_failure(7), second.note_failure(8)] == [True, False]
        assert [second.note_resumption(4), first.note_resumption(5)] == [True, False]
        assert first.read() == Failure(failed_at=7, resumed_at=4)

    @pytest.mark.parametrize(
        ("failure", "restored", "text"),
        [
            (Failure(None, None), False, "did NOT fail"),
            (Failure(1854, None), False, "no snippet came after"),
            (Failure(1854, 1), False, "began ANEW, at snippet 1"),
            (Failure(1854, 1790), True, "failed at snippet 1,854 and was restored from its checkpoint"),
        ],
    )
    def test_tells_a_restore_from_a_new_beginning(self, failure: Failure, restored: bool, text: str) -> None:
        assert failure.restored is restored
        assert text in failure.describe()
