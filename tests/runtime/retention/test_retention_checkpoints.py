"""What is read from Flink's REST interface about checkpoints, and where it is asked."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from checkpoint_tools import Flink, FlinkServer

from flink_agents.runtime.retention.checkpoints import (
    CheckpointClient,
    CheckpointPoller,
    CheckpointView,
    RestError,
    rest_addresses,
)

JOB = "0123456789abcdef0123456789abcdef"
DISABLED = {"errors": ["Checkpointing has not been enabled."]}
UNKNOWN = {"errors": [f"Job {JOB} not found"]}


def view(flink: Flink) -> CheckpointView:
    return CheckpointView.from_answer(flink.answer(), 1)


# -- answers --------------------------------------------------------------------------


def test_nothing_was_triggered() -> None:
    checkpoint_view = view(Flink())
    assert (checkpoint_view.highest, checkpoint_view.discarded, checkpoint_view.enabled) == (0, 0, True)


def test_a_checkpoint_is_discarded_for_a_later_one() -> None:
    flink = Flink()
    flink.complete(flink.trigger())
    assert view(flink).discarded == 0
    flink.complete(flink.trigger())
    flink.trigger()
    assert (view(flink).discarded, view(flink).highest) == (1, 3)


def test_several_are_retained() -> None:
    flink = Flink(retained_number=3)
    for _ in range(5):
        flink.complete(flink.trigger())
    assert view(flink).discarded == 2


def test_a_savepoint_is_neither_kept_nor_discarded() -> None:
    flink = Flink()
    flink.complete(flink.trigger())
    savepoint = flink.complete(flink.trigger(savepoint=True))
    assert (view(flink).discarded, view(flink).highest) == (0, 2)
    # Somebody disposed of it; or it is what a former Flink said.
    savepoint.discarded = True
    flink.complete(flink.trigger())
    assert view(flink).discarded == 1


def test_the_last_one_was_discarded_with_the_job() -> None:
    flink = Flink()
    flink.complete(flink.trigger()).discarded = True
    assert view(flink).discarded == 0


def test_ids_that_the_history_does_not_show() -> None:
    flink = Flink(next_id=8, restored=7)
    assert view(flink).highest == 7
    savepoint = flink.complete(flink.trigger(savepoint=True))
    for _ in range(12):
        flink.fail(flink.trigger())
    answer = flink.answer()
    answer["latest"]["savepoint"] = {**savepoint.json(), "id": 99}
    assert CheckpointView.from_answer(answer, 1).highest == 99


def test_what_changes_in_place_is_no_new_content() -> None:
    flink = Flink()
    entry = flink.trigger()
    previous_view = view(flink)
    entry.acknowledged += 1
    assert CheckpointView.from_answer(flink.answer(cache=True), 1).content == previous_view.content
    flink.complete(entry)
    assert CheckpointView.from_answer(flink.answer(cache=True), 1).content == previous_view.content
    assert view(flink).content != previous_view.content


def test_more_are_retained_than_shown() -> None:
    flink = Flink(retained_number=20)
    for _ in range(11):
        assert not view(flink).hides
        flink.complete(flink.trigger())
    assert view(flink).hides


def test_failures_hide_nothing() -> None:
    flink = Flink()
    flink.complete(flink.trigger())
    for _ in range(12):
        flink.fail(flink.trigger())
    assert not view(flink).hides
    flink.complete(flink.trigger())
    assert not view(flink).hides


@pytest.mark.parametrize("answer", [{}, [], None, {"history": [{}], "counts": {}, "latest": {}}, "text"])
def test_an_answer_of_something_else(answer: Any) -> None:
    with pytest.raises(RestError, match="not Flink's"):
        CheckpointView.from_answer(answer, 1)


# -- asking ---------------------------------------------------------------------------


def test_one_connection_serves_many_questions() -> None:
    flink = Flink()
    with FlinkServer(lambda path: (200, flink.answer())) as server:
        client = CheckpointClient((server.address,), JOB)
        views = [client.request_view() for _ in range(3)]
        client.close()
    assert server.paths == [f"/jobs/{JOB}/checkpoints"] * 3
    assert server.connections == 1
    assert len({checkpoint_view.connection for checkpoint_view in views}) == 1


def test_another_connection_has_another_number() -> None:
    flink = Flink()
    with FlinkServer(lambda path: (200, flink.answer())) as server:
        client = CheckpointClient((server.address,), JOB)
        first = client.request_view()
        client.close()
        second = client.request_view()
        client.close()
        other_client = CheckpointClient((server.address,), JOB)
        third = other_client.request_view()
        other_client.close()
    assert len({first.connection, second.connection, third.connection}) == 3


def test_the_first_address_that_knows_the_job() -> None:
    flink = Flink()
    with (
        FlinkServer(lambda path: (404, UNKNOWN)) as stranger,
        FlinkServer(lambda path: (200, b"<html>")) as page,
        FlinkServer(lambda path: (200, flink.answer())) as server,
    ):
        addresses = (stranger.address, page.address, f"http://{server.address}/prefix/")
        client = CheckpointClient(addresses, JOB)
        client.request_view()
        client.request_view()
        client.close()
    assert server.paths == [f"/prefix/jobs/{JOB}/checkpoints"] * 2
    assert stranger.paths == [f"/jobs/{JOB}/checkpoints"]


def test_a_job_that_takes_no_checkpoints() -> None:
    with FlinkServer(lambda path: (404, DISABLED)) as server:
        client = CheckpointClient((server.address,), JOB)
        assert not client.request_view().enabled
        client.close()


def test_connections_that_are_not_kept() -> None:
    flink = Flink()
    with FlinkServer(lambda path: (200, flink.answer()), keeps=False) as server:
        with pytest.raises(RestError, match="not kept open"):
            CheckpointClient((server.address,), JOB).request_view()


@pytest.mark.parametrize("addresses", [(), ("127.0.0.1:1",), ("http://[broken",), ("127.0.0.1:port",)])
def test_nobody_answers(addresses: tuple[str, ...]) -> None:
    with pytest.raises(RestError):
        CheckpointClient(addresses, JOB).request_view()


class Hearer:
    """Notes what it is told, and lets a test wait for it."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self._changed = threading.Condition()

    def _tell(self, word: str) -> None:
        with self._changed:
            self.told.append(word)
            self._changed.notify_all()

    def asking(self) -> None:
        self._tell("asking")

    def answered(self, view: CheckpointView) -> None:
        self._tell("answered")

    def failed(self, error: RestError) -> None:
        self._tell("failed")

    def ended(self, error: BaseException) -> None:
        self._tell("ended")

    def wait_for(self, word: str, times: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.told.count(word) >= times, 30), self.told


class Grumbler(Hearer):
    """Fails to listen."""

    def answered(self, view: CheckpointView) -> None:
        super().answered(view)
        raise ValueError("no")


def test_listeners_are_told_in_turn(caplog: pytest.LogCaptureFixture) -> None:
    flink = Flink()
    broken = [False]
    reply = lambda path: (500, {}) if broken[0] else (200, flink.answer())  # noqa: E731
    with FlinkServer(reply) as server:
        poller = CheckpointPoller((server.address,), JOB, interval=0.01)
        grumbler = Grumbler()
        hearer = Hearer()
        poller.listen(grumbler)
        poller.listen(hearer)
        hearer.wait_for("answered", 2)
        broken[0] = True
        hearer.wait_for("failed", 2)
        poller.forget(grumbler)
        poller.forget(hearer)
        late = Hearer()
        poller.listen(late)
        late.wait_for("failed", 1)
        poller.forget(late)
    assert hearer.told[:4] == ["asking", "answered"] * 2
    assert all(first == "asking" for first in hearer.told[::2])
    assert "a listener for checkpoints" in caplog.text


# -- where ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flink", "expected"),
    [
        ({}, ()),
        ({"rest.port": "8081"}, ()),
        ({"jobmanager.rpc.address": "jm"}, ("http://jm:8081",)),
        ({"jobmanager.rpc.address": "jm", "rest.address": "rest", "rest.port": "1"}, ("http://rest:1",)),
        ({"rest.address": "jm", "rest.bind-port": "5-7, 9"}, tuple(f"http://jm:{n}" for n in (5, 6, 7, 9))),
        ({"rest.address": "jm", "rest.port": "6", "rest.bind-port": "5-6"}, ("http://jm:6", "http://jm:5")),
        ({"rest.address": "jm", "rest.bind-port": "0"}, ()),
        ({"rest.address": "jm", "rest.port": "what"}, ()),
        ({"rest.address": "::1", "security.ssl.rest.enabled": "true"}, ("https://[::1]:8081",)),
    ],
)
def test_addresses_of_a_configuration(flink: dict[str, str], expected: tuple[str, ...]) -> None:
    assert rest_addresses(flink) == expected


def test_a_wide_range_of_ports_is_not_searched_to_its_end() -> None:
    assert len(rest_addresses({"rest.address": "jm", "rest.bind-port": "1000-60000"})) == 100
