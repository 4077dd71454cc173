"""A job that comes with another version of a module takes nothing from jobs that live at the same time."""

from __future__ import annotations

import importlib

import pytest
from renewal_tools import ANSWER, CHECKED, PREFIX, Operator, Process

from flink_agents.api.errors import StaleCodeError
from flink_agents.runtime.flink.function import SubtaskAttempt
from flink_agents.runtime.flink.internals.java_objects import jar_folder
from flink_agents.runtime.flink.shipping import code_digest, user_modules

SHARED = {
    "common": "WORD = 'common'\n",
    "shop": "from $common import WORD\ndef answer():\n    return 1\n",
    "bank": "from $common import WORD\ndef answer():\n    return WORD\n",
}


@CHECKED
def test_what_another_job_uses_stays(process: Process, checked: bool) -> None:
    """The usual case: one job is stopped, changed and resumed while others go on."""
    directory = process.write("a", SHARED)
    bank = process.submit(directory, "bank", checked)
    assert process.result(directory, "shop", checked) == 1
    previous_modules = process.modules()
    process.write("a", {"shop": SHARED["shop"].replace("1", "2")})
    assert process.result(directory, "shop", checked) == 2
    after = process.modules()
    assert {name for name in after if after[name] is not previous_modules[name]} == {"shop"}
    assert bank.answer() == "common"


def test_a_module_that_another_job_uses_is_refused_by_name(process: Process) -> None:
    directory = process.write("a", SHARED)
    bank = process.submit(directory, "bank")
    previous_modules = process.modules()
    changed = process.write("b", {**SHARED, "common": "WORD = 'other'\n"})
    with pytest.raises(StaleCodeError) as caught:
        process.submit(changed, "bank")
    text = str(caught.value)
    assert f"another version of the module {PREFIX}common in memory" in text
    assert "in use by the job 'name of job 0' (job 0)" in text
    assert "stop that job first" in text
    assert process.modules() == previous_modules
    assert bank.answer() == "common"

    bank.end()
    assert process.result(changed, "bank") == "other"


def test_a_module_whose_dependent_is_in_use_is_refused(process: Process) -> None:
    sources = {
        "store.__init__": "from .prices import PRICE\n",
        "store.prices": "PRICE = 1\n",
        "store.words": "WORD = 'w'\n",
        "shop": "from $store.prices import PRICE\ndef answer():\n    return PRICE\n",
        "bank": "from $store.words import WORD\ndef answer():\n    return WORD\n",
    }
    directory = process.write("a", sources)
    process.submit(directory, "bank")
    process.write("a", {"store.prices": "PRICE = 2\n"})
    with pytest.raises(StaleCodeError, match=r"in use by the job 'name of job 0'"):
        process.submit(directory, "shop")


def test_jobs_that_bring_the_same_modules_share_them(process: Process) -> None:
    first = process.write("a", SHARED)
    second = process.write("b", SHARED)
    first_operator = process.submit(first, "bank")
    previous_modules = process.modules()
    two = process.submit(second, "bank")
    assert process.modules() == previous_modules
    assert first_operator.answer() == two.answer() == "common"


def test_operators_of_one_job_get_in_nobodys_way(process: Process) -> None:
    directory = process.write("a", SHARED)
    process.result(directory, "bank")
    process.write("a", {"common": "WORD = 'new'\n"})
    operators = [process.submit(directory, "bank", checked, job="one") for checked in (False, True, True)]
    assert [operator.answer() for operator in operators] == ["new"] * 3
    assert len({id(operator.function) for operator in operators}) == 1


def test_operators_that_are_loaded_at_the_same_time_know_their_modules(process: Process) -> None:
    """One of them may import a module while another one of any job arrives."""
    first = process.write("a", {"start": ANSWER.format(0), "shop": ANSWER.format(1)})
    first_operator = process.submit(first, "start")
    two = process.submit(first, "start")
    payload = process.driver(first, "shop", checked=True)
    names = first_operator.do(lambda: code_digest.operator_arrives("one", "", payload))
    first_operator.do(lambda: importlib.import_module(f"{PREFIX}shop"))
    two.do(lambda: code_digest.operator_loaded(code_digest.operator_arrives("two", "", payload)))
    first_operator.do(lambda: code_digest.operator_loaded(names))
    for operator in (first_operator, two):
        operator.end()
    previous_modules = process.modules()
    assert process.result(first, "shop") == 1
    assert process.modules() == previous_modules


def test_what_is_not_known_of_a_module_takes_nothing_from_others(process: Process) -> None:
    """A module that an operator imported late uses what its text says, and not everything."""
    directory = process.write("a", {**SHARED, "late": "def price():\n    return 1\n"})
    bank = process.submit(directory, "bank")
    bank.do(lambda: importlib.import_module(f"{PREFIX}late"))
    assert process.result(directory, "shop") == 1
    process.write("a", {"shop": SHARED["shop"].replace("1", "2")})
    assert process.result(directory, "shop") == 2


def test_a_restart_of_a_job_stays_with_its_version(process: Process) -> None:
    """Somebody may have changed the file while the job ran: the job was built with the old one."""
    directory = process.write("a", SHARED)
    payload = process.driver(directory, "bank", checked=True)
    Operator("one", directory, payload).end()
    previous_modules = process.modules()
    process.write("a", {"common": "WORD = 'new'\n"})
    again = Operator("one", directory, payload)
    assert again.answer() == "common"
    assert process.modules() == previous_modules
    again.end()


def test_code_that_goes_on_behind_its_thread_is_in_use(process: Process) -> None:
    directory = process.write("a", SHARED)
    bank = process.submit(directory, "bank")
    attempt: SubtaskAttempt = bank.do(lambda: SubtaskAttempt("identity", lambda wait: None))
    bank.end()
    process.write("a", {"common": "WORD = 'new'\n"})
    with pytest.raises(StaleCodeError, match=r"in use by the job 'name of job 0'"):
        process.submit(directory, "bank")
    attempt.end_attempt(wait=True)
    assert process.result(directory, "bank") == "new"


def test_a_job_waits_for_threads_that_are_about_to_end(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_digest, "WAIT_SECONDS", 60.0)
    directory = process.write("a", SHARED)
    bank = process.submit(directory, "bank")
    monkeypatch.setattr(code_digest.time, "sleep", lambda seconds: bank.end())
    process.write("a", {"common": "WORD = 'new'\n"})
    assert process.result(directory, "bank") == "new"


def test_modules_of_which_nobody_knows_who_uses_them_stay_while_a_job_lives(process: Process) -> None:
    directory = process.write(
        "a",
        {
            "shop": "NAME = 'ru' + 'les'\ndef answer():\n    import importlib\n"
            "    return importlib.import_module('$' + NAME).PRICE\n",
            "rules": "PRICE = 1\n",
            "bank": "def answer():\n    return 1\n",
        },
    )
    shop = process.submit(directory, "shop")
    assert shop.answer() == 1
    previous_modules = process.modules()
    process.write("a", {"rules": "PRICE = 2\n"})
    assert process.result(directory, "bank") == 1
    assert process.modules()["rules"] is previous_modules["rules"]
    shop.end()
    assert process.result(directory, "shop") == 2


def test_renewed_modules_leave_the_jar_files_of_jobs() -> None:
    folder = jar_folder()
    user_modules.forget_classes()
    assert folder.is_dir()
    assert jar_folder() == folder
