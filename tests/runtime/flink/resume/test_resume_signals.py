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
from tests.suite.tables import each_case

Handlers = dict[signal.Signals, Any]


def handlers() -> Handlers:
    return {
        signal_number: signal.getsignal(signal_number) for signal_number in (signal.SIGINT, signal.SIGTERM)
    }


@pytest.fixture(autouse=True)
def _put_back() -> Any:
    previous_handlers = handlers()
    # A shell starts what it runs in the background with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for signal_number, handler in previous_handlers.items():
        signal.signal(signal_number, handler)


def test_handlers_are_those_from_before_after_the_job() -> None:
    previous_handlers = handlers()
    signals = StopSignals(lambda: None, lambda: None)
    signals.install_handlers()
    assert all(after is not previous_handlers[signal_number] for signal_number, after in handlers().items())
    signals.restore_handlers()
    assert handlers() == previous_handlers
    signals.restore_handlers()
    assert handlers() == previous_handlers


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signals = StopSignals(lambda: None, lambda: None)
    signals.install_handlers()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL


def test_no_handler_is_installed_outside_of_the_main_thread() -> None:
    previous_handlers = handlers()
    thread = threading.Thread(target=StopSignals(lambda: None, lambda: None).install_handlers)
    thread.start()
    thread.join()
    assert handlers() == previous_handlers


@each_case(("number", "code"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, TERMINATED)])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_stops_and_the_second_ends_at_once(
    number: signal.Signals, code: int, second: signal.Signals
) -> None:
    calls: list[str] = []
    signals = StopSignals(lambda: calls.append("stop"), lambda: calls.append("kill"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "_exit", sys.exit)
        signals.install_handlers()
        try:
            signal.raise_signal(number)
            wait_until("the stop", lambda: calls == ["stop"], 60)
            assert signals.code == code
            with pytest.raises(SystemExit) as ended:
                signal.raise_signal(second)
        finally:
            signals.restore_handlers()
    assert calls == ["stop", "kill"]
    assert ended.value.code == (INTERRUPTED if second is signal.SIGINT else TERMINATED)


def test_a_signal_of_the_moment_in_which_the_jvm_starts_is_not_lost() -> None:
    """The JVM ignores SIGTERM, so that a savepoint can be taken; the script does not, not even just then."""
    server = importlib.import_module("pyflink.pyflink_gateway_server")
    popen = server.Popen
    received_signals = list[int]()
    signal.signal(signal.SIGTERM, lambda number, _: received_signals.append(number))
    child = "import signal; print(signal.getsignal(signal.SIGTERM) is signal.SIG_IGN)"
    with gateway._child_ignores_termination():
        process = server.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, preexec_fn=lambda: None)
        signal.raise_signal(signal.SIGTERM)
        assert process.communicate()[0].strip() == b"True"
    assert received_signals == [signal.SIGTERM] and server.Popen is popen
