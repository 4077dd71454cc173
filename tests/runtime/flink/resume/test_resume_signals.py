"""Handlers of Ctrl-C and SIGTERM: only while a job runs, only in the main thread, and put back afterwards."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from flink_agents.runtime.flink.launch import gateway
from flink_agents.runtime.flink.resume.local_start import INTERRUPTED, TERMINATED, StopSignals
from tests.cluster.waiting import wait_until
from tests.suite.tables import each

Handlers = dict[signal.Signals, Any]


def handlers() -> Handlers:
    return {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}


@pytest.fixture(autouse=True)
def _put_back() -> Any:
    before = handlers()
    # A shell starts what it runs in the background with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


def test_handlers_are_those_from_before_after_the_job() -> None:
    before = handlers()
    signals = StopSignals(lambda: None, lambda: None)
    signals.install()
    assert all(after is not before[one] for one, after in handlers().items())
    signals.restore()
    assert handlers() == before
    signals.restore()
    assert handlers() == before


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signals = StopSignals(lambda: None, lambda: None)
    signals.install()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL


def test_no_handler_is_installed_outside_of_the_main_thread() -> None:
    before = handlers()
    thread = threading.Thread(target=StopSignals(lambda: None, lambda: None).install)
    thread.start()
    thread.join()
    assert handlers() == before


@each(("number", "code"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, TERMINATED)])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_stops_and_the_second_ends_at_once(
    number: signal.Signals, code: int, second: signal.Signals
) -> None:
    told: list[str] = []
    signals = StopSignals(lambda: told.append("stop"), lambda: told.append("kill"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "_exit", sys.exit)
        signals.install()
        try:
            signal.raise_signal(number)
            wait_until("the stop", lambda: told == ["stop"], 60)
            assert signals.code == code
            with pytest.raises(SystemExit) as ended:
                signal.raise_signal(second)
        finally:
            signals.restore()
    assert told == ["stop", "kill"]
    assert ended.value.code == (INTERRUPTED if second is signal.SIGINT else TERMINATED)


def test_a_signal_of_the_moment_in_which_the_jvm_starts_is_not_lost() -> None:
    """The JVM ignores SIGTERM, so that a savepoint can be taken; the script does not, not even just then."""
    server = importlib.import_module("pyflink.pyflink_gateway_server")
    popen, told = server.Popen, list[int]()
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    child = "import signal; print(signal.getsignal(signal.SIGTERM) is signal.SIG_IGN)"
    with gateway._child_ignores_termination():
        process = server.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, preexec_fn=lambda: None)
        signal.raise_signal(signal.SIGTERM)
        assert process.communicate()[0].strip() == b"True"
    assert told == [signal.SIGTERM] and server.Popen is popen
