"""Stores by name: those of the package and those of third parties, with their options."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from flink_agents import Agent, InputEvent
from flink_agents.api.action_state import decode_text, encode_text
from flink_agents.api.errors import (
    JobDefinitionError,
    OptionError,
    UnknownStoreError,
)
from flink_agents.api.settings.options import Configuration
from flink_agents.api.settings.stores import check_store, open_store, store_names
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.memory.store import MemoryStore
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore
from flink_agents.plan import LoadedAgent, compile_with_code
from flink_agents.runtime.flink.stores import StoreChoice

PROVIDER = """
from flink_agents.connectors.action_state.kafka.settings import KafkaSettings
from flink_agents.connectors.action_state.memory.store import MemoryStore

class TheirStore(MemoryStore):
    def __init__(self, options):
        super().__init__()
        self.options = options

def no_store(options):
    return options
"""


THEIR_OPTIONS = """
from flink_agents import ConfigOption

OPTIONS = [
    ConfigOption("action-state.theirs.depth", int, 1, "How deep.", minimum=1),
    ConfigOption("action-state.theirs.url", str, None, "Where."),
    ConfigOption("action-state.theirs.headers", dict, None, "Any."),
]
WRONG = [ConfigOption("action-state.others.depth", int, 1, "How deep.")]
"""


def distribution(root: Path, name: str, entry_points: str, options: str = "") -> None:
    """Something that is installed."""
    info = root / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = {"flink_agents.action_state_stores": entry_points, "flink_agents.action_state_options": options}
    text = "".join(f"[{group}]\n{points}\n" for group, points in groups.items())
    (info / "entry_points.txt").write_text(text)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "their_stores.py").write_text(PROVIDER)
    (tmp_path / "their_options.py").write_text(THEIR_OPTIONS)
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in ("their_stores", "their_options"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


def test_the_stores_of_the_package(tmp_path: Path) -> None:
    assert set(store_names()) >= {"memory", "sqlite"}
    assert isinstance(open_store("memory"), MemoryStore)
    assert isinstance(open_store("sqlite", {"path": str(tmp_path / "a.db")}), SQLiteStore)


def test_a_name_that_nobody_provides_lists_what_there_is() -> None:
    with pytest.raises(UnknownStoreError, match=r"(?s)'redis'.*memory, sqlite") as caught:
        open_store("redis")
    assert isinstance(caught.value, JobDefinitionError)


def test_a_store_of_a_third_party(installed: Path) -> None:
    distribution(installed, "theirs", "theirs = their_stores:TheirStore")
    assert "theirs" in store_names()
    store = open_store("theirs", {"a": 1})
    assert type(store).__name__ == "TheirStore"
    assert vars(store)["options"] == {"a": 1}


def test_a_name_of_the_package_stays_what_it_is(installed: Path) -> None:
    distribution(installed, "theirs", "memory = their_stores:TheirStore")
    assert type(open_store("memory")) is MemoryStore


@pytest.mark.parametrize(
    ("entry_points", "text"),
    [
        ("theirs = their_stores:no_store", "returned a value that is not a store"),
        ("theirs = their_stores:Missing", "cannot be imported"),
        ("theirs = missing_module:Store", "missing_module"),
    ],
)
def test_a_provider_that_does_not_work(installed: Path, entry_points: str, text: str) -> None:
    distribution(installed, "theirs", entry_points)
    with pytest.raises(UnknownStoreError, match=text):
        open_store("theirs")


def test_two_distributions_with_one_name(installed: Path) -> None:
    distribution(installed, "theirs", "theirs = their_stores:TheirStore")
    distribution(installed, "others", "theirs = other_stores:OtherStore")
    with pytest.raises(UnknownStoreError, match=r"(?s)several.*other_stores:OtherStore"):
        open_store("theirs")


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("sqlite", {}, "needs its option 'action-state.sqlite.path'"),
        ("sqlite", {"path": "a.db", "paht": "b.db"}, "(?s)no option 'paht'.*busy-timeout, lease"),
        ("sqlite", {"path": 3}, "invalid value of option 'action-state.sqlite.path'"),
        ("sqlite", {"path": "a.db", "lease": "10"}, "duration"),
        ("sqlite", {"path": "a.db", "lease": "1 ms"}, "at least 100 ms"),
        ("sqlite", {"path": "a.db", "max-record-bytes": 0}, "at least 1"),
        ("memory", {"path": "a.db"}, "no option 'path'"),
    ],
)
def test_an_option_that_means_nothing(name: str, options: dict[str, object], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        open_store(name, options)


def test_options_reach_the_store(tmp_path: Path) -> None:
    options = {
        "path": str(tmp_path / "a.db"),
        "max-record-bytes": "100",
        "lease": "2 s",
        "busy-timeout": "3 s",
    }
    store = open_store("sqlite", options)
    assert isinstance(store, SQLiteStore)
    assert (store.path, store.max_record_bytes) == (tmp_path / "a.db", 100)
    assert (store._lease_seconds, store._busy_seconds) == (2.0, 3.0)
    asyncio.run(store.close())


# -- what is told when an agent is applied -------------------------------------------------


def chosen(local: bool = False, **options: object) -> StoreChoice | None:
    """What ``apply`` takes; nothing is opened by it."""
    agent = Agent(name="chooses").add_action("act", [InputEvent], lambda event, ctx: None)
    bound = LoadedAgent(*compile_with_code(agent))
    keys: dict[Any, object] = {
        "action-state." + name.replace("_", "."): value for name, value in options.items()
    }
    return StoreChoice.for_agent(Configuration(keys), bound, local)


@pytest.mark.parametrize("local", [False, True])
def test_a_name_that_nobody_provides_is_refused_when_the_agent_is_applied(local: bool) -> None:
    with pytest.raises(UnknownStoreError, match=r"(?s)'redis'.*memory, sqlite"):
        chosen(local, store="redis")


def test_options_are_checked_when_the_agent_is_applied(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"needs its option 'action-state\.sqlite\.path'"):
        chosen(store="sqlite")
    path = tmp_path / "directory" / "store.db"
    assert chosen(store="sqlite", sqlite_path=str(path)) == StoreChoice("sqlite", {"path": str(path)})
    assert not path.parent.exists()
    local = chosen(True, store="sqlite")
    assert local is not None and Path(local.options["path"]).name == "action-state.sqlite"
    assert chosen(store="memory") == StoreChoice("memory", {})


def test_a_third_partys_store_is_not_imported_when_the_agent_is_applied(installed: Path) -> None:
    with pytest.raises(UnknownStoreError, match="unknown store 'theirs'"):
        chosen(store="theirs")
    distribution(installed, "theirs", "theirs = their_stores:Missing")
    assert chosen(store="theirs", theirs_depth=3) == StoreChoice("theirs", {"depth": 3})
    assert "their_stores" not in sys.modules
    distribution(installed, "others", "theirs = other_stores:OtherStore")
    with pytest.raises(UnknownStoreError, match="several"):
        chosen(store="theirs")


def test_a_third_party_may_tell_its_options(installed: Path) -> None:
    distribution(installed, "theirs", "theirs = their_stores:Missing", "theirs = their_options:OPTIONS")
    assert chosen(store="theirs", theirs_depth="3", theirs_url="u") == StoreChoice(
        "theirs", {"depth": 3, "url": "u"}
    )
    with pytest.raises(OptionError, match="needs its option 'action-state.theirs.url'"):
        chosen(store="theirs")
    with pytest.raises(OptionError, match="at least 1"):
        chosen(store="theirs", theirs_depth=0)
    with pytest.raises(OptionError, match=r"unknown option 'action-state\.theirs\.dpeth'") as caught:
        chosen(store="theirs", theirs_dpeth=3)
    assert caught.value.fix == "did you mean 'action-state.theirs.depth'?"
    assert chosen(store="theirs", theirs_url="u", theirs_headers_a="1") is not None
    environ = {"FLINK_AGENTS_ACTION_STATE_THEIRS_DEPTH": "4"}
    assert dict(Configuration.from_environment(environ)) == {"action-state.theirs.depth": 4}
    assert "their_stores" not in sys.modules


@pytest.mark.parametrize("named", ["their_options:WRONG", "their_options:Missing", "missing_options:OPTIONS"])
def test_options_of_a_third_party_that_are_none(installed: Path, named: str) -> None:
    distribution(installed, "theirs", "theirs = their_stores:TheirStore", f"theirs = {named}")
    with pytest.raises(UnknownStoreError, match="options"):
        chosen(store="theirs")


def test_entries_of_an_option_come_one_by_one_or_together() -> None:
    servers = {"bootstrap-servers": "kafka:9092"}
    separate_settings = KafkaSettings.from_options({**servers, "client.security-protocol": "SSL"})
    together = KafkaSettings.from_options({**servers, "client": {"security-protocol": "SSL"}})
    assert separate_settings.client == together.client == {"security_protocol": "SSL"}
    environ = {"FLINK_AGENTS_ACTION_STATE_KAFKA_CLIENT_SECURITY_PROTOCOL": "SSL"}
    assert dict(Configuration.from_environment(environ)) == {
        "action-state.kafka.client.security_protocol": "SSL"
    }
    with pytest.raises(OptionError, match="entries"):
        KafkaSettings.from_options({**servers, "client": "SSL"})


def test_options_of_kafkas_client_are_left_to_it() -> None:
    check_store("kafka", {"bootstrap-servers": "kafka:9092", "client.security_protocol": "SSL"})
    with pytest.raises(OptionError, match="has no option 'client.security_protocol'"):
        check_store("memory", {"client.security_protocol": "SSL"})
    with pytest.raises(OptionError, match="needs its option 'action-state.kafka.bootstrap-servers'"):
        check_store("kafka", {})


def test_any_text_comes_back() -> None:
    for text in ("", "\x00", "\ud83d\ude00", "\U0001f600", "é"):
        assert decode_text(encode_text(text)) == text
    assert encode_text("\ud83d\ude00") != encode_text("\U0001f600")
