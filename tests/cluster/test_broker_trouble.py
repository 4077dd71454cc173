"""Trouble of a broker is what it says; the broker is a stand-in."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from flink_agents.testing.kafka import KafkaBroker
from tests.cluster import broker_trouble
from tests.cluster.broker_trouble import BrokerTrouble
from tests.cluster.waiting import wait_until


class FakeBroker:
    """Notes what is done to it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails = ""

    def __getattr__(self, name: str) -> Any:
        def call() -> None:
            self.calls.append(name)
            if name == self.fails:
                raise OSError(name)

        return call


class CountingLock:
    """Knows how many threads wait for it."""

    def __init__(self) -> None:
        self.waiting = 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.waiting += 1
        self._lock.acquire()
        self.waiting -= 1

    def __exit__(self, *error: object) -> None:
        self._lock.release()


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    monkeypatch.setattr(broker_trouble, "EVERY", (0.0, 0.001))
    monkeypatch.setattr(broker_trouble, "SECONDS", (0.0, 0.001))
    return FakeBroker()


def make_trouble(broker: FakeBroker, seed: int = 1, **settings: Any) -> BrokerTrouble:
    return BrokerTrouble(cast(KafkaBroker, broker), seed, **settings)


def test_it_always_comes_back(broker: FakeBroker) -> None:
    with make_trouble(broker) as trouble:
        wait_until("all kinds", lambda: {"pause", "stop", "kill"} <= set(broker.calls), 30)
    done = trouble.done
    assert broker.calls.count("pause") == broker.calls.count("resume") == done.pauses > 0
    assert broker.calls.count("stop") == done.stops > 0
    assert broker.calls.count("kill") == done.kills > 0
    assert broker.calls.count("start") == done.stops + done.kills
    assert broker.calls[-1] in ("resume", "start")
    assert done.count == len(broker.calls) / 2


def test_the_long_one_comes_once(broker: FakeBroker) -> None:
    with make_trouble(broker, outage=0.3) as trouble:
        wait_until("the outage", lambda: trouble.done.longest_seconds >= 0.3, 30)
        many = trouble.done.count + 20
        wait_until("more trouble", lambda: trouble.done.count >= many, 30)
    assert trouble.done.outages == 1


def test_only_the_long_one(broker: FakeBroker) -> None:
    with make_trouble(broker, outage=0.1, often=False) as trouble:
        wait_until("the outage", lambda: trouble.done.count, 30)
    assert len(broker.calls) == 2


def test_a_pause_has_no_other_trouble_inside(broker: FakeBroker) -> None:
    trouble = make_trouble(broker)
    trouble._lock = lock = cast(Any, CountingLock())
    with trouble:
        wait_until("trouble", lambda: trouble.done.count, 30)
        with trouble.paused():
            begin = len(broker.calls)
            wait_until("another one that waits", lambda: lock.waiting, 30)
            assert len(broker.calls) == begin
            assert broker.calls[-1] == "pause"
    assert broker.calls[-1] in ("resume", "start")


def test_a_broker_that_does_not_come_back(broker: FakeBroker) -> None:
    broker.fails = "start"
    with pytest.raises(AssertionError, match="did not come back: start"), make_trouble(broker):
        wait_until("a start that fails", lambda: "start" in broker.calls, 30)
