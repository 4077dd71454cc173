"""``flink-agents state`` shows values of classes as data, and executes nothing for them."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgpack
import pytest
from journal_files import Cli, loaded, write

from flink_agents.api.action_state import JournalKey, Owner, Record, RecordKind
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore
from flink_agents.runtime.journal.records import ActionRecord, CallIdentity, CallRecord, RunHeader
from flink_agents.runtime.serde.codec import ValueCodec

CODEC = ValueCodec()

TRAP = """
from pathlib import Path

Path("sprung").write_text(__name__)
"""

KINDS: dict[str, tuple[int, list[Any], str]] = {
    "enum": (11, ["RED"], "RED"),
    "model": (12, [0, {"number": 7}, []], "{'number': 7}"),
    "dataclass": (13, [{"number": 7}], "{'number': 7}"),
    "named tuple": (14, [{"number": 7}], "{'number': 7}"),
}

MODULES = ("setup", "conftest", "trap_package.inner", "trap_namespace.inner", "this", "antigravity")

THERE = (
    "subprocess:Popen",
    "os:system",
    "decimal:DecimalTuple",
    "http:HTTPStatus",
    "typer.models:OptionInfo",
)
"""Names of what is in the process; some are data classes."""


@pytest.fixture(autouse=True)
def traps(file: Path, cli: Cli) -> None:
    for path in ("setup.py", "conftest.py", "trap_package/__init__.py", "trap_package/inner.py"):
        (file.parent / path).parent.mkdir(exist_ok=True)
        (file.parent / path).write_text(TRAP)
    (file.parent / "trap_namespace").mkdir()
    (file.parent / "trap_namespace" / "inner.py").write_text(TRAP)


def value_of(name: str, kind: str) -> bytes:
    code, content, _ = KINDS[kind]
    packed: Any = msgpack.packb({msgpack.ExtType(code, b""): [name, *content]}, strict_types=True)
    return b"\x01" + packed


def records(value: bytes, failed: str) -> list[Record]:
    """A run with a value wherever a journal has one."""
    call = CallIdentity("shop:charge", b"\x01" * 16, "order=1")
    error = {"type": failed, "message": "no funds", "args": value, "state": value}
    did = ActionRecord({"kept": value}, {"seen": value}, [["Paid", {}]], [], 2)
    return [
        Record(RecordKind.RUN, 0, "", 0, RunHeader(b"\x01" * 16, 0, "plan", value).pack(CODEC)),
        Record(RecordKind.CALL, 0, "0/pay", 0, CallRecord(call, value, None, 1, 0).pack(CODEC)),
        Record(RecordKind.CALL, 0, "0/pay", 1, CallRecord(call, None, error, 1, 0).pack(CODEC)),
        Record(RecordKind.ACTION, 0, "0/pay", 2, did.pack(CODEC)),
    ]


@pytest.mark.nightly(beyond=12)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*(f"{module}:Thing" for module in MODULES), *THERE])
def test_values_of_classes_are_shown_as_data(file: Path, cli: Cli, name: str, kind: str) -> None:
    previous_modules = set(sys.modules)
    value = value_of(name, kind)
    write(file, ("orders", 1, records(value, name)))
    (run,) = loaded(cli("show", "1", "--json"))[0]["runs"]
    shown = f"<{name} {KINDS[kind][2]}>, {len(value)} bytes"
    if kind == "enum":
        shown = f"<{name} 'RED'>, {len(value)} bytes"
    paid, refused, done = run["records"]
    assert [run["event"], paid["returned"]] == [shown, shown]
    assert (done["short_term"], done["sensory"]) == ({"kept": shown}, {"seen": shown})
    assert refused["raised"] == name
    assert name in cli("show", "1").stdout
    assert not (file.parent / "sprung").exists()
    assert not {"setup", "this", "antigravity", "trap_package"} & (set(sys.modules) - previous_modules)


@pytest.mark.parametrize("module", MODULES)
def test_keys_of_classes_are_shown_by_their_text(file: Path, cli: Cli, module: str) -> None:
    text = f"e{module}:Thing:RED"

    async def append() -> None:
        store = SQLiteStore(file)
        await store.open(Owner.create("flink-job", "orders/shop"))
        await store.append(JournalKey("orders", text), records(CODEC.encode(1), "x:Y"))
        await store.close()

    asyncio.run(append())
    assert [row["key"] for row in loaded(cli("list", "--json"))] == [text]
    assert text in cli("show", text, "--raw").stdout
    assert not (file.parent / "sprung").exists()


def test_where_the_user_is_is_not_where_modules_are_looked_for(file: Path, cli: Cli) -> None:
    previous_path = list(sys.path)
    write(file, ("orders", 1, records(CODEC.encode(1), "x:Y")))
    for command in (["list"], ["show", "1"], ["stats"], ["prune", "1", "--through", "0"]):
        cli(*command)
    assert sys.path == previous_path


def test_a_corrupt_value_behind_one_of_a_class_is_no_reason_to_make_it(file: Path, cli: Cli) -> None:
    whole = value_of("http:HTTPStatus", "enum")
    write(file, ("orders", 1, records(b"\x01\x92" + whole[1:] + b"\xc1", "x:Y")))
    paid = loaded(cli("show", "1", "--json"))[0]["runs"][0]["records"][0]
    assert "cannot be read" in paid["returned"]
