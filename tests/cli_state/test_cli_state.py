"""``flink-agents state`` on a file of the store ``sqlite`` as the runtime writes it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from journal_files import Cli, loaded, write
from written_journals import BEGUN, CHARGE, CODEC, call, header

from flink_agents import Agent, InputEvent
from flink_agents.api.action_state import JournalKey, Owner, Record, RecordKind
from flink_agents.api.context import RunnerContext
from flink_agents.connectors.action_state.sqlite.store import SQLiteStore
from flink_agents.runtime.flink.stores import LOCAL_FILE
from flink_agents.runtime.journal.plans import PLANS
from flink_agents.runtime.journal.records import ActionRecord, CallRecord
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.keys import encode_key
from flink_agents.testing import OperatorHarness

GONE = """
from dataclasses import dataclass

@dataclass
class Receipt:
    number: int
"""


# -- list ----------------------------------------------------------------------------


def test_list(file: Path, cli: Cli) -> None:
    headers = [header(0), header(3)]
    write(file, ("orders", 7, headers), ("orders", ("a", 1), headers), ("bills", "order-1", headers))
    lines = cli("list").stdout.splitlines()
    assert lines[0].split() == ["job", "key", "runs", "records", "bytes", "first", "last", "pruned"]
    assert [line.split("  ")[0] for line in lines[1:]] == ["bills", "orders", "orders"]
    rows = loaded(cli("list", "--json", "--job", "orders"))
    assert [(row["key"], row["raw"]) for row in rows] == [("7", "i7"), ("('a', 1)", "t2:sa2:i1")]
    assert {key: rows[0][key] for key in ("runs", "records", "first", "last", "pruned")} == {
        "runs": 2,
        "records": 2,
        "first": 0,
        "last": 3,
        "pruned": None,
    }


def test_plans_are_no_journals_of_keys(file: Path, cli: Cli) -> None:
    write(file, (PLANS, "a-plan", [header(0)]), ("orders", 1, [header(0)]))
    assert [row["job"] for row in loaded(cli("list", "--json"))] == ["orders"]
    cli("show", "a-plan", code=1)


def test_list_says_that_there_is_more(file: Path, cli: Cli) -> None:
    write(file, *[("orders", key, [header(0)]) for key in range(3)])
    assert len(loaded(cli("list", "--json", "--limit", "2"))) == 2
    assert cli("list", "--limit", "2").stdout.splitlines()[-1] == "there are more than 2; see --limit"
    assert "more than" not in cli("list", "--limit", "3").stdout


def test_all_pages_of_journals_are_read(file: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flink_agents.cli.journals.operations.PAGE", 2)
    write(file, *[("orders", key, [header(0)]) for key in range(5)])
    assert len(loaded(cli("list", "--json"))) == 5
    assert loaded(cli("show", "4", "--json"))[0]["raw"] == "i4"


def test_a_key_whose_class_is_gone_is_listed_by_its_text(file: Path, cli: Cli) -> None:
    async def append() -> None:
        store = SQLiteStore(file)
        await store.open(Owner.create("flink-job", "orders/shop"))
        await store.append(JournalKey("orders", "eno_module:Size:BIG"), [header(0)])
        await store.close()

    asyncio.run(append())
    assert loaded(cli("list", "--json"))[0]["key"] == "eno_module:Size:BIG"
    assert loaded(cli("show", "eno_module:Size:BIG", "--raw", "--json"))[0]["runs"][0]["run"] == 0


# -- show ----------------------------------------------------------------------------


def test_show(journal: list[Record], cli: Cli) -> None:
    lines = cli("show", "order-1").stdout.splitlines()
    assert lines[:3] == [
        "job orders, key 'order-1': 2 runs",
        "",
        f"run 0: begun 2023-11-14T22:13:20.000Z, plan plan-1, input {'0a' * 16}, event ['order', 5]",
    ]
    cells = [[cell for cell in line.split("  ") if cell] for line in lines[3:10]]
    request = "order='order-1', total=5"
    ended = "2023-11-14T22:13:21.500Z"
    strip = [[cell.strip() for cell in row] for row in cells]
    assert strip[0] == ["step", "record", "call", "function", "request", "outcome", "attempts", "ended"]
    assert strip[1:] == [
        ["0/pay", "intent", "0", "shop:charge", request, "-", "-", "-"],
        [
            "0/pay",
            "call",
            "0",
            "shop:charge",
            request,
            r"raised shop:CardRefused: no\x1b[31m funds",
            "3",
            ended,
        ],
        ["0/pay", "call", "1", "shop:charge", request, "cancelled", "1", ended],
        [
            "0/pay",
            "action",
            "-",
            "-",
            "-",
            "2 calls; emitted Paid; side output log; wrote total, old,...",
            "-",
            "-",
        ],
        ["0/note", "call", "0", "shop:charge", request, "returned {'id': 7}", "1", ended],
        ["0/note", "rerun", "-", "-", "-", "earlier records of the step are void", "-", "-"],
    ]
    assert lines[11].startswith("run 1: begun")


async def _two_branches(event: InputEvent, ctx: RunnerContext) -> None:
    async def branch(name: str) -> None:
        await asyncio.sleep(0.001)
        await ctx.durable_execute_async(str, name)

    await asyncio.gather(branch("a"), branch("b"))


def test_show_names_tasks_and_waits(file: Path, cli: Cli) -> None:
    agent = Agent(name="branches").add_action("act", [InputEvent], _two_branches)
    with OperatorHarness(agent, store=lambda: SQLiteStore(str(file))) as harness:
        harness.push(1)
    rows = [line.split() for line in cli("show", "0").stdout.splitlines() if " task " in line]
    task_kinds = sorted({(row[2], row[3]) for row in rows})
    assert task_kinds == [(task, kind) for task in "01" for kind in ("call", "wait")]
    assert "a timer ended" in cli("show", "0").stdout


def test_show_as_json_has_all(journal: list[Record], cli: Cli) -> None:
    (shown_journal,) = loaded(cli("show", "order-1", "--json"))
    assert [run["run"] for run in shown_journal["runs"]] == [0, 1]
    assert shown_journal["runs"][0]["plan"] == "plan-1"
    records = {
        (record["step"], record["record"], record["index"]): record
        for record in shown_journal["runs"][0]["records"]
    }
    assert records["0/note", "call", 0] == {
        "step": "0/note",
        "record": "call",
        "index": 0,
        "function": "shop:charge",
        "arguments": "01" * 16,
        "request": CHARGE.request,
        "returned": "{'id': 7}",
        "bytes": len(CODEC.encode({"id": 7})),
        "attempts": 1,
        "ended_at_ms": 1_700_000_001_500,
        "order": 4,
    }
    assert records["0/pay", "call", 0]["raised"] == "shop:CardRefused"
    action = records["0/pay", "action", 2]
    assert action["short_term"] == {"total": "5", "old": None, "tree": "an object"}
    assert action["sensory"] == {"seen": "1"}
    assert (action["events"], action["side"]) == ([["Paid", "{'id': 1}"]], [["log", "'x'"]])


def test_show_one_run(journal: list[Record], cli: Cli) -> None:
    (shown_journal,) = loaded(cli("show", "order-1", "--run", "1", "--json"))
    assert [run["run"] for run in shown_journal["runs"]] == [1]


@pytest.mark.parametrize(
    ("key", "argument"),
    [
        ("order-1", "order-1"),
        ("7", '"7"'),
        (7, "7"),
        (1.5, "1.5"),
        (True, "true"),
        (None, "null"),
        ("NaN", "NaN"),
        (("a", (1, "b")), '["a", [1, "b"]]'),
        ("", ""),
    ],
)
def test_a_key_is_a_json_value(file: Path, cli: Cli, key: Any, argument: str) -> None:
    write(file, ("orders", key, [header(0)]))
    assert loaded(cli("show", argument, "--json"))[0]["raw"] == encode_key(key)


def test_a_key_of_several_jobs(file: Path, cli: Cli) -> None:
    write(file, ("orders", 1, [header(0)]), ("bills", 1, [header(2)]))
    assert [journal["job"] for journal in loaded(cli("show", "1", "--json"))] == ["bills", "orders"]
    assert cli("show", "1").stdout.count("job ") == 2
    assert [journal["job"] for journal in loaded(cli("show", "1", "--job", "orders", "--json"))] == ["orders"]


@pytest.mark.parametrize("job", [[], ["--job", "orders"], ["--job", "bills"]])
def test_a_key_without_a_journal(journal: list[Record], cli: Cli, job: list[str]) -> None:
    result = cli("show", "order-2", *job, code=1)
    assert (result.stdout, result.stderr) == ("", "no journal of the key 'order-2'\n")
    assert loaded(cli("show", "order-2", "--json", *job, code=1)) == []


def test_a_value_whose_class_is_gone_is_shown(file: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    module = file.parent / "gone_receipts.py"
    module.write_text(GONE)
    monkeypatch.syspath_prepend(str(file.parent))
    from gone_receipts import Receipt  # pyright: ignore[reportMissingImports]

    value = {"ours": Receipt(7), "both": (1, {2})}
    action = ActionRecord({}, {}, [["Paid", {"receipt": Receipt(8)}]], [], 1)
    records = [
        header(0),
        Record(RecordKind.CALL, 0, "0/pay", 0, call(value)),
        Record(RecordKind.ACTION, 0, "0/pay", 1, action.pack(CODEC)),
    ]
    write(file, ("orders", 1, records))
    module.unlink()
    del sys.modules["gone_receipts"]
    paid, done = loaded(cli("show", "1", "--json"))[0]["runs"][0]["records"]
    shown = "<gone_receipts:Receipt {'number': 7}>"
    assert paid["returned"] == f"{{'ours': {shown}, 'both': (1, {{2}})}}, {paid['bytes']} bytes"
    assert done["events"] == [["Paid", "{'receipt': <gone_receipts:Receipt {'number': 8}>}"]]
    assert "gone_receipts:Receipt" in cli("show", "1").stdout


def test_classes_of_named_modules_are_looked_for_where_the_user_is(file: Path, cli: Cli) -> None:
    module = file.parent / "kept_receipts.py"
    module.write_text(GONE)
    sys.path.insert(0, str(file.parent))
    from kept_receipts import Receipt  # pyright: ignore[reportMissingImports]

    write(file, ("orders", 1, [header(0), Record(RecordKind.CALL, 0, "0/pay", 0, call(Receipt(7)))]))
    sys.path.remove(str(file.parent))
    del sys.modules["kept_receipts"]
    (paid,) = loaded(cli("show", "1", "--json"))[0]["runs"][0]["records"]
    assert paid["returned"] == f"<kept_receipts:Receipt {{'number': 7}}>, {paid['bytes']} bytes"
    assert "kept_receipts" not in sys.modules
    (paid,) = loaded(cli("show", "1", "--module", "kept_receipts", "--json"))[0]["runs"][0]["records"]
    assert paid["returned"] == "Receipt(number=7)"
    assert "no_such_module" in cli("show", "1", "--module", "no_such_module", code=2).output


def test_a_pickled_value_is_not_loaded(file: Path, cli: Cli) -> None:
    class Local:
        def __reduce__(self) -> tuple[Any, ...]:
            return print, ("executed",)

    value = ValueCodec(allow_pickle=True).encode([1, Local()])
    record = CallRecord(CHARGE, value, None, 1, BEGUN, 0).pack(CODEC)
    write(file, ("orders", 1, [header(0), Record(RecordKind.CALL, 0, "0/pay", 0, record)]))
    result = cli("show", "1", "--json")
    (paid,) = loaded(result)[0]["runs"][0]["records"]
    assert paid["returned"].startswith("[1, <extension 16, ")
    assert "executed" not in result.output.replace("<extension", "")


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x02x", b"\x01\xc1", CODEC.encode([1]), CODEC.encode("x")])
def test_records_that_cannot_be_read_do_not_hide_the_others(file: Path, cli: Cli, data: bytes) -> None:
    kinds = (RecordKind.CALL, RecordKind.INTENT, RecordKind.ACTION)
    broken = [Record(kind, 0, "0/pay", 0, data) for kind in kinds]
    good = Record(RecordKind.CALL, 0, "0/pay", 1, call(5))
    write(file, ("orders", 1, [Record(RecordKind.RUN, 0, "", 0, data), *broken, good]))
    (run,) = loaded(cli("show", "1", "--json"))[0]["runs"]
    assert run["unreadable"] and [record["bytes"] for record in run["records"][:3]] == [len(data)] * 3
    assert run["records"][3]["returned"] == "5"
    assert f"unreadable, {len(data)} bytes" in cli("show", "1").stdout


def test_a_run_without_header(file: Path, cli: Cli) -> None:
    write(file, ("orders", 1, [Record(RecordKind.CALL, 4, "0/pay", 0, call("x" * 300 + "\n"))]))
    lines = cli("show", "1").stdout.splitlines()
    assert lines[2] == "run 4: no header"
    assert len(lines) == 5 and "xxx..." in lines[4]


# -- prune and stats -----------------------------------------------------------------


def test_prune(file: Path, cli: Cli) -> None:
    write(file, ("orders", 1, [header(0), header(1), header(2)]), ("orders", 2, [header(0)]))
    assert cli("prune", "1", "--through", "1").stdout == (
        "job orders, key 1: 2 records removed, pruned through 1\n"
    )
    (shown_journal,) = loaded(cli("show", "1", "--json"))
    assert (shown_journal["pruned"], [run["run"] for run in shown_journal["runs"]]) == (1, [2])
    assert [row["records"] for row in loaded(cli("list", "--json"))] == [1, 1]
    error = cli("show", "1", "--run", "1", code=2).stderr
    assert error.startswith("RecordsPrunedError: ") and "FA6004" in error
    assert cli("show", "1").stdout.startswith("job orders, key 1: 1 runs, pruned through 1\n")


def test_a_journal_of_which_all_was_pruned_is_known(file: Path, cli: Cli) -> None:
    write(file, ("orders", 1, [header(0)]), prune=0)
    for job in ([], ["--job", "orders"]):
        (shown_journal,) = loaded(cli("show", "1", "--json", *job))
        assert (shown_journal["pruned"], shown_journal["runs"]) == (0, [])
        assert loaded(cli("prune", "1", "--through", "0", "--json", *job))[0]["removed"] == 0


def test_runs_to_come_are_not_pruned(file: Path, cli: Cli) -> None:
    write(file, ("orders", 1, [header(0), header(1)]))
    error = cli("prune", "1", "--through", "2", code=2).stderr
    assert error.startswith("OptionError: runs that are still to come") and "at most 1" in error
    assert loaded(cli("list", "--json"))[0]["runs"] == 2


def test_prune_wants_one_job(file: Path, cli: Cli) -> None:
    write(file, ("orders", 1, [header(0)]), ("bills", 1, [header(0)]))
    error = cli("prune", "1", "--through", "0", code=2).stderr
    assert "several jobs" in error and "'bills', 'orders'" in error and "--job" in error
    cli("prune", "1", "--through", "0", "--job", "bills")
    assert [row["runs"] for row in loaded(cli("list", "--json"))] == [0, 1]
    cli("prune", "2", "--through", "0", code=1)


def test_stats(file: Path, cli: Cli) -> None:
    async def body() -> tuple[dict[str, Any], str]:
        store = SQLiteStore(file)
        await store.open(Owner.create("flink-job", "orders/shop", 1, 2))
        await store.append(JournalKey("orders", "i1"), [header(0), header(1)])
        shown = await asyncio.to_thread(cli, "stats", "--json"), await asyncio.to_thread(cli, "stats")
        await store.close()
        return loaded(shown[0]), shown[1].stdout

    stats, text = asyncio.run(body())
    assert {key: stats[key] for key in ("journals", "records", "owners")} == {
        "journals": 1,
        "records": 2,
        "owners": [{"group": "orders/shop", "job": "flink-job", "subtask": 1, "parallelism": 2}],
    }
    assert stats["bytes"] == 2 * len(header(0).data) and stats["stored_bytes"] > 0
    assert f"store     {stats['store']}" in text.splitlines()
    assert text.splitlines()[-1].split() == ["orders/shop", "flink-job", "1", "2"]


# -- which store ---------------------------------------------------------------------


def test_the_store_of_the_options(file: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    write(file, ("orders", 1, [header(0)]))
    monkeypatch.setenv("FLINK_AGENTS_ACTION_STATE_STORE", "sqlite")
    (file.parent / "options.yaml").write_text("action-state.sqlite.path: other.db\n")
    monkeypatch.setenv("FLINK_AGENTS_CONFIG", "options.yaml")
    assert "other.db does not exist" in cli("list", store=False, code=2).stderr
    monkeypatch.setenv("FLINK_AGENTS_ACTION_STATE_SQLITE_PATH", str(file))
    assert len(loaded(cli("list", "--json", store=False))) == 1
    monkeypatch.setenv("FLINK_AGENTS_ACTION_STATE_SQLITE_PATH", "other.db")
    assert len(loaded(cli("list", "--json", "--option", f"path={file}", store=False))) == 1
    assert len(loaded(cli("list", "--json", "--option", "path=other.db"))) == 1
    assert not Path("other.db").exists()


@pytest.mark.parametrize("named", [[], ["--store", "sqlite"]], ids=len)
def test_the_store_of_a_local_job_is_found(cli: Cli, named: list[str]) -> None:
    write(LOCAL_FILE.absolute(), ("orders", 1, [header(0)]))
    assert len(loaded(cli("list", "--json", *named, store=False))) == 1


def test_the_journal_of_a_local_job_is_found_unless_there_are_several(cli: Cli) -> None:
    first, second = (Path(f".flink-agents/jobs/{name}/journal.sqlite").absolute() for name in ("a", "b"))
    write(first, ("orders", 1, [header(0)]))
    assert len(loaded(cli("list", "--json", store=False))) == 1
    write(second, ("orders", 1, [header(0)]))
    assert "jobs/b/journal.sqlite" in cli("list", store=False, code=2).stderr
    assert len(loaded(cli("list", "--json", "--path", str(second), store=False))) == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "OptionError: no store found"),
        (["--store", "redis"], "UnknownStoreError: unknown store 'redis'"),
        (["--store", "sqlite"], "OptionError: store 'sqlite' needs its option 'action-state.sqlite.path'"),
        (["--store", "sqlite", "--option", "paht=x"], "OptionError: store 'sqlite' has no option 'paht'"),
        (
            ["--store", "sqlite", "--path", "missing.db"],
            "missing.db does not exist",
        ),
        (["--store", "sqlite", "--path", "no_store.db"], "StoreFormatError: "),
        (["--store", "sqlite", "--option", "path"], "--option takes name=value"),
    ],
)
@pytest.mark.parametrize(
    "command", [["list"], ["show", "1"], ["prune", "1", "--through", "0"], ["stats"]], ids=" ".join
)
def test_a_store_that_cannot_be_looked_at(
    cli: Cli, command: list[str], arguments: list[str], text: str
) -> None:
    Path("no_store.db").write_text("this is something else")
    result = cli(*command, *arguments, store=False, code=2)
    assert text in result.stderr
    assert "Traceback" not in result.output
    assert not Path("missing.db").exists()


def test_a_key_that_is_none(file: Path, cli: Cli) -> None:
    error = cli("show", '{"a": 1}', code=2).stderr
    assert error.startswith("KeyEncodingError: ") and "--raw" in error
