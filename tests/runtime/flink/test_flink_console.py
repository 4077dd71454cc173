"""What a job says on the console before it begins: nothing that its author could not do anything about."""

from __future__ import annotations

import io
import logging
import sys
from types import ModuleType
from typing import Any

import pytest

from flink_agents.api.agents.job_guard import check_may_run, without_jobs
from flink_agents.api.errors import MissingMainGuardError
from flink_agents.runtime.flink.environment import leave_out_file_systems
from flink_agents.runtime.flink.following.console import is_terminal


def test_beams_missing_file_systems_are_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    leave_out_file_systems()
    beam = logging.getLogger("apache_beam.io.filesystems")
    beam.warning("Failed to import GCSFileSystem; loading of this filesystem will be skipped. %s", "why")
    beam.warning("something else")
    assert caplog.messages == ["something else"]


class Catcher:
    """What stands in the place of stderr in a worker."""

    def write(self, text: str) -> None: ...

    def flush(self) -> None: ...


@pytest.mark.parametrize("stderr", [Catcher(), None, io.StringIO()])
def test_what_only_writes_is_no_terminal(stderr: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stderr)
    assert is_terminal() is False


def test_a_job_is_refused_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    check_may_run()
    monkeypatch.setitem(sys.modules, "_pemja", ModuleType("_pemja"))
    with pytest.raises(MissingMainGuardError, match="a worker of the job imports") as caught:
        check_may_run()
    assert caught.value.where is not None and "test_flink_console.py" in caught.value.where


def test_jobs_are_refused_for_a_time() -> None:
    with without_jobs("plan show"), without_jobs("plan show"):
        with pytest.raises(MissingMainGuardError, match="plan show imports"):
            check_may_run()
    check_may_run()
