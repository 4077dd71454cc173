"""What a job says on the console before it begins: nothing that its author could not do anything about."""

from __future__ import annotations

import logging

import pytest

from flink_agents.runtime.flink.environment import leave_out_file_systems


def test_beams_missing_file_systems_are_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    leave_out_file_systems()
    beam = logging.getLogger("apache_beam.io.filesystems")
    beam.warning("Failed to import GCSFileSystem; loading of this filesystem will be skipped. %s", "why")
    beam.warning("something else")
    assert caplog.messages == ["something else"]
