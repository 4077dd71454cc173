"""The log of a local job rolls, whatever else the log configuration in use says."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pyflink
import pytest

from flink_agents.api.settings.options import Configuration
from flink_agents.runtime.flink import logs
from flink_agents.runtime.flink.following.console import KEPT, last_error, new_log
from flink_agents.runtime.flink.logs import configuration_beside, rolling_text
from tests.suite.tables import each_case

FLINKS = Path(pyflink.__file__).parent / "conf"
FILE = "appender.f.name = F\nappender.f.type = FILE\nappender.f.fileName = ${sys:log.file}\n"
LEVEL = "rootLogger.level = DEBUG\n"


def settings(text: str) -> dict[str, str]:
    """Return a configuration in Java's form of properties, in which the last line of a name counts."""
    lines = [line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return {name.strip(): value.strip() for name, value in lines}


def test_flinks_configuration_rolls_and_is_otherwise_unchanged() -> None:
    text = (FLINKS / "log4j-cli.properties").read_text()
    changed = rolling_text(text, 7, 3)
    assert changed is not None
    original_settings = settings(text)
    after = settings(changed)
    rolls = {
        "type": "RollingFile",
        "filePattern": "${sys:log.file}.%i",
        "policies.type": "Policies",
        "policies.size.type": "SizeBasedTriggeringPolicy",
        "policies.size.size": "7MB",
        "strategy.type": "DefaultRolloverStrategy",
        "strategy.fileIndex": "min",
        "strategy.max": "2",
    }
    gauge_settings = {
        name: value for name, value in after.items() if name.startswith("logger.repeatedgauge.")
    }
    # Log4j would miss the copy, aloud, once it is removed with an old log.
    assert original_settings["monitorInterval"] == "30"
    own = {f"appender.file.{name}": value for name, value in rolls.items()} | {"monitorInterval": "0"}
    assert after == original_settings | own | gauge_settings
    warning = "Name collision: Group already contains a Metric with the name {}. Metric will not be reported."
    pattern = gauge_settings["logger.repeatedgauge.filter.known.regex"]
    assert re.fullmatch(pattern, warning.format("'pendingCommittables'"))
    assert not re.fullmatch(pattern, warning.format("'mine'"))


@each_case(
    "text, rolls",
    [
        (FILE, True),
        (LEVEL + FILE, True),
        (FILE.replace("FILE", "File"), True),
        (FILE.replace(" = ", "="), True),
        (FILE.replace("appender", "  appender"), True),
        (FILE.replace("FILE", "RollingFile"), False),
        (FILE.replace("${sys:log.file}", "other.log"), False),
        (FILE.replace("FILE", "CONSOLE"), False),
        (LEVEL, False),
        ("", False),
        ("<Configuration><Appenders/></Configuration>", False),
    ],
)
def test_only_a_plain_appender_of_the_log_file_is_changed(text: str, rolls: bool) -> None:
    changed = rolling_text(text, 1, 2)
    assert (changed is not None) == rolls
    if changed is not None:
        unchanged_settings = {
            name: value for name, value in settings(text).items() if not name.endswith(".type")
        }
        assert settings(changed).items() >= unchanged_settings.items()


@each_case("is_uri", [True, False])
def test_each_job_of_a_process_has_a_copy_with_its_options(
    is_uri: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("logs with blanks")
    original = folder / "log4j.properties"
    original.write_text(LEVEL + FILE)
    location = original.as_uri() if is_uri else str(original)
    for number, size in enumerate((5, 9)):
        log = folder / f"job-{number}.log"
        copy = configuration_beside(log, Configuration({"local.log-size-mb": size}))(location)
        # The next job finds the copy of the one before in use.
        assert copy is not None
        location = copy
        assert settings(logs._log_path(copy).read_text())["appender.f.policies.size.size"] == f"{size}MB"
    assert original.read_text() == LEVEL + FILE


@each_case(
    "location", ["", "missing.properties", "https://example.com/log4j.properties", "classpath:log4j.xml"]
)
def test_a_configuration_that_cannot_be_read_stays_in_use(location: str, tmp_path: Path) -> None:
    assert configuration_beside(tmp_path / "a.log", Configuration())(location) is None


def test_the_oldest_logs_go_with_all_their_files(tmp_path: Path) -> None:
    logs = [new_log(f"job{number}", tmp_path) for number in range(2)]
    oldest = logs[0]
    assert oldest is not None
    for suffix in (".1", ".2", ".properties"):
        oldest.with_name(oldest.name + suffix).touch()
    old = tmp_path / "tmp_job_db_LOG.old.1"
    new = tmp_path / "tmp_job_db_LOG"
    old.touch()
    new.touch()
    os.utime(old, (1, 1))
    os.utime(new, (2**33, 2**33))
    for number in range(KEPT):
        new_log(f"later{number}", tmp_path)
    assert not list(tmp_path.glob(f"{oldest.name}*"))
    assert len(list(tmp_path.glob("*.log"))) == KEPT
    assert new.exists() and not old.exists()


def test_the_logs_of_rocksdb_have_the_same_bounds() -> None:
    settings = logs.rocksdb_settings(Configuration({"local.log-size-mb": 3, "local.log-files": 2}))
    assert sorted(settings.values()) == ["2", "3mb"]


def test_the_last_error_may_be_in_the_file_before(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("2026-01-01 INFO  a [] - goes on\n")
    assert last_error(log) is None
    log.with_name("job.log.1").write_text("2026-01-01 00:00:00 ERROR a [] - broken\n")
    assert last_error(log) == "a [] - broken"
