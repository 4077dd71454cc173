"""A job that comes to a process with another version of a module gets its own, and nobody else loses any."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib.util import cache_from_source
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel

from flink_agents.api.durable import durable_callable
from flink_agents.api.errors import StaleCodeError
from flink_agents.runtime.flink.attempts import Attempt
from flink_agents.runtime.flink.shipping import code_digest, module_renewal, module_uses, user_modules
from flink_agents.runtime.flink.shipping.code_digest import CodeCheck, interpreter_name, modules_used
from flink_agents.runtime.serde.codec import ValueCodec

Sources = Mapping[str, str]

PREFIX = "renewed_"
"""All modules of these tests begin with it: nothing else of this process may be renewed."""


class _Reference:
    """A function by name, as cloudpickle ships those of modules."""

    def __init__(self, module: str, name: str) -> None:
        self._place = (module, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _found, self._place


def _found(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


class Operator(threading.Thread):
    """An operator in the thread that Flink runs it in: it arrives, answers, and stays until it is ended."""

    def __init__(self, job: str, directory: Path, payload: bytes) -> None:
        super().__init__(daemon=True)
        self._job, self._directory, self._payload = job, directory, payload
        self._commands: list[Callable[[], Any]] = []
        self._asked, self._answered = threading.Semaphore(0), threading.Semaphore(0)
        self._answer: Any = None
        self.start()
        self._answered.acquire()
        if isinstance(self._answer, BaseException):
            self.end()
            raise self._answer

    def run(self) -> None:
        self._ask(self._arrive)
        while self._asked.acquire() and self._commands:
            self._ask(self._commands.pop())

    def _ask(self, what: Callable[[], Any]) -> None:
        try:
            self._answer = what()
        except BaseException as error:
            self._answer = error
        self._answered.release()

    def _arrive(self) -> None:
        sys.path.insert(0, str(self._directory))
        names = module_renewal.operator_arrives(self._job, f"name of {self._job}", self._payload)
        try:
            check, self.function = pickle.loads(self._payload)
            if check is not None:
                check.check()
        finally:
            module_renewal.operator_loaded(names)

    def do(self, what: Callable[[], Any]) -> Any:
        """The result of a call in the operator's thread."""
        self._commands.append(what)
        self._asked.release()
        self._answered.acquire()
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer

    def answer(self) -> Any:
        return self.do(lambda: self.function())

    def end(self) -> None:
        self._asked.release()
        self.join()


class Process:
    """A worker process, and the drivers of the jobs that come to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._operators: list[Operator] = []
        self._numbers = iter(range(1000))

    def write(self, place: str, sources: Sources) -> Path:
        directory = self.root / place
        for name, source in sources.items():
            file = directory / Path(*f"{PREFIX}{name}".split(".")).with_suffix(".py")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(source.replace("$", PREFIX), encoding="utf-8")
        return directory

    def driver(self, directory: Path, module: str, checked: bool) -> bytes:
        """What a driver sends that runs in a process of its own."""
        kept = {name: value for name, value in sys.modules.items() if name.startswith(PREFIX)}
        path = list(sys.path)
        for name in kept:
            del sys.modules[name]
        sys.path.insert(0, str(directory))
        importlib.invalidate_caches()
        try:
            importlib.import_module(PREFIX + module)
            modules = tuple(modules_used([PREFIX + module]))
        finally:
            for name in [name for name in sys.modules if name.startswith(PREFIX)]:
                del sys.modules[name]
            sys.modules.update(kept)
            sys.path[:] = path
        check = CodeCheck(interpreter_name(), modules) if checked else None
        return pickle.dumps((check, _Reference(PREFIX + module, "answer")))

    def submit(self, directory: Path, module: str, checked: bool = True, job: str = "") -> Operator:
        """An operator of a new job, or of the one named."""
        payload = self.driver(directory, module, checked)
        operator = Operator(job or f"job {next(self._numbers)}", directory, payload)
        self._operators.append(operator)
        return operator

    def result(self, directory: Path, module: str, checked: bool = True) -> Any:
        """What a job answers that ends then."""
        operator = self.submit(directory, module, checked)
        try:
            return operator.answer()
        finally:
            operator.end()

    def modules(self) -> dict[str, ModuleType]:
        return {
            name.removeprefix(PREFIX): module
            for name, module in sys.modules.items()
            if name.startswith(PREFIX)
        }

    def close(self) -> None:
        for operator in self._operators:
            if operator.is_alive():
                operator.end()


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    is_of_user = user_modules.is_of_user

    def is_of_test(name: str, module: ModuleType) -> bool:
        return name.startswith(PREFIX) and is_of_user(name, module)

    for place in (user_modules, code_digest):
        monkeypatch.setattr(place, "is_of_user", is_of_test)
    monkeypatch.setattr(code_digest, "in_flink_worker", lambda: True)
    monkeypatch.setattr(code_digest, "_accepted", {})
    monkeypatch.setattr(module_uses, "_uses", set())
    monkeypatch.setattr(module_renewal, "_known_jobs", {})
    monkeypatch.setattr(module_renewal, "_loading", set())
    monkeypatch.setattr(user_modules, "_notes", {})
    monkeypatch.setattr(module_renewal, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(sys, "path", list(sys.path))
    process = Process(tmp_path)
    yield process
    process.close()
    for name in [name for name in sys.modules if name.startswith(PREFIX)]:
        del sys.modules[name]


# -- one job after the other --------------------------------------------------------------

ANSWER = "def answer():\n    return {}\n"


class Case:
    """A program, a change, and what the change concerns.

    Args:
        old: The modules of the first job; ``$`` is the prefix of all names.
        new: Those of them that the second job has in another version.
        answers: What ``answer()`` of the module ``shop`` gives in each.
        anew: What is loaded anew where both are in one directory; all else stays as it is.
        late: Whether a module is imported by a call only: nobody can tell what is in memory then.
    """

    def __init__(
        self, old: Sources, new: Sources, answers: tuple[Any, Any], anew: set[str], late: bool = False
    ) -> None:
        self.old, self.new, self.answers, self.anew, self.late = old, new, answers, anew, late


CASES = {
    "the module itself": Case({"shop": ANSWER.format(1)}, {"shop": ANSWER.format(2)}, (1, 2), {"shop"}),
    "a constant outside of functions": Case(
        {"shop": "PRICE = 1\ndef answer():\n    return PRICE\n"},
        {"shop": "PRICE = 2\ndef answer():\n    return PRICE\n"},
        (1, 2),
        {"shop"},
    ),
    "a default": Case(
        {"shop": "def answer(price=1):\n    return price\n"},
        {"shop": "def answer(price=2):\n    return price\n"},
        (1, 2),
        {"shop"},
    ),
    "nothing": Case({"shop": ANSWER.format(1)}, {}, (1, 1), set()),
    "a comment": Case({"shop": ANSWER.format(1)}, {"shop": "# cheap\n" + ANSWER.format(1)}, (1, 1), set()),
    "a helper that is used by attribute": Case(
        {
            "shop": "import $rules\ndef answer():\n    return $rules.price()\n",
            "rules": "def price():\n    return 1\n",
        },
        {"rules": "def price():\n    return 2\n"},
        (1, 2),
        {"shop", "rules"},
    ),
    "a helper whose function was imported": Case(
        {
            "shop": "from $rules import price\ndef answer():\n    return price()\n",
            "rules": "def price():\n    return 1\n",
        },
        {"rules": "def price():\n    return 2\n"},
        (1, 2),
        {"shop", "rules"},
    ),
    "a helper whose constant was imported": Case(
        {"shop": "from $rules import PRICE\ndef answer():\n    return PRICE\n", "rules": "PRICE = 1\n"},
        {"rules": "PRICE = 2\n"},
        (1, 2),
        {"shop", "rules"},
    ),
    "a helper of a helper, and one beside it": Case(
        {
            "shop": "from $rules import price\nfrom $logs import log\n"
            "def answer():\n    return log(price())\n",
            "rules": "from $limits import LIMIT\ndef price():\n    return LIMIT\n",
            "limits": "LIMIT = 1\n",
            "logs": "def log(value):\n    return value\n",
        },
        {"limits": "LIMIT = 2\n"},
        (1, 2),
        {"shop", "rules", "limits"},
    ),
    "a base class": Case(
        {
            "shop": "from $base import Base\nclass Shop(Base):\n    pass\n"
            "def answer():\n    return Shop().price()\n",
            "base": "class Base:\n    def price(self):\n        return 1\n",
        },
        {"base": "class Base:\n    def price(self):\n        return 2\n"},
        (1, 2),
        {"shop", "base"},
    ),
    "modules that import each other": Case(
        {
            "shop": "import $rules\nPRICE = 1\ndef answer():\n    return $rules.price()\n",
            "rules": "import $shop\ndef price():\n    return $shop.PRICE\n",
        },
        {"shop": "import $rules\nPRICE = 2\ndef answer():\n    return $rules.price()\n"},
        (1, 2),
        {"shop", "rules"},
    ),
    "a module of a package that does not use it": Case(
        {
            "store.__init__": "",
            "store.prices": "PRICE = 1\n",
            "store.words": "WORD = 'price'\n",
            "shop": "from $store.prices import PRICE\nimport $store.words\ndef answer():\n    return PRICE\n",
        },
        {"store.prices": "PRICE = 2\n"},
        (1, 2),
        {"shop", "store.prices"},
    ),
    "a module of a package that uses it": Case(
        {
            "store.__init__": "from .prices import PRICE\n",
            "store.prices": "PRICE = 1\n",
            "store.words": "WORD = 'price'\n",
            "shop": "import $store.words\nimport $store\ndef answer():\n    return $store.PRICE\n",
        },
        {"store.prices": "PRICE = 2\n"},
        (1, 2),
        {"shop", "store", "store.prices", "store.words"},
    ),
    "a package with a module that does nothing": Case(
        {
            "store.__init__": "PRICE = 1\n",
            "store.empty": "",
            "shop": "import $store.empty\n"
            "def answer():\n    return $store.PRICE + len($store.empty.__doc__ or '')\n",
        },
        {"store.__init__": "PRICE = 2\n"},
        (1, 2),
        {"shop", "store", "store.empty"},
    ),
    "relative imports": Case(
        {
            "store.__init__": "",
            "store.prices": "from .limits import LIMIT\nfrom . import words\nPRICE = LIMIT\n",
            "store.limits": "LIMIT = 1\n",
            "store.words": "WORD = 'price'\n",
            "shop": "from $store import prices\ndef answer():\n    return prices.PRICE\n",
        },
        {"store.limits": "LIMIT = 2\n"},
        (1, 2),
        {"shop", "store.prices", "store.limits"},
    ),
    "a module that is imported inside a function": Case(
        {
            "shop": "def answer():\n    from $rules import price\n    return price()\n",
            "rules": "def price():\n    return 1\n",
        },
        {"rules": "def price():\n    return 2\n"},
        (1, 2),
        {"shop", "rules"},
        late=True,
    ),
    "a module that is imported by a text": Case(
        {
            "shop": "import importlib\ndef answer():\n    return importlib.import_module('$rules').PRICE\n",
            "rules": "PRICE = 1\n",
        },
        {"rules": "PRICE = 2\n"},
        (1, 2),
        {"shop", "rules"},
        late=True,
    ),
    "a new module": Case(
        {"shop": ANSWER.format(1)},
        {"shop": "from $rules import PRICE\ndef answer():\n    return PRICE\n", "rules": "PRICE = 2\n"},
        (1, 2),
        {"shop", "rules"},
    ),
    "a module that became a package": Case(
        {"shop": "from $rules import PRICE\ndef answer():\n    return PRICE\n", "rules": "PRICE = 1\n"},
        {"rules.__init__": "from .prices import PRICE\n", "rules.prices": "PRICE = 2\n"},
        (1, 2),
        {"shop", "rules", "rules.prices"},
    ),
    "a function that became a class": Case(
        {
            "shop": "from $rules import Price\ndef answer():\n    return Price(1)\n",
            "rules": "def Price(one):\n    return one\n",
        },
        {
            "rules": "class Price(int):\n    def __new__(cls, one):\n"
            "        return int.__new__(cls, one + 1)\n"
        },
        (1, 2),
        {"shop", "rules"},
    ),
}
CHECKED = pytest.mark.parametrize("checked", [True, False], ids=["agent", "function of PyFlink"])


@CHECKED
@pytest.mark.parametrize("name", CASES)
def test_a_job_runs_its_own_version_of_files_that_changed(process: Process, name: str, checked: bool) -> None:
    case = CASES[name]
    directory = process.write("a", case.old)
    assert process.result(directory, "shop", checked) == case.answers[0]
    before = process.modules()
    process.write("a", case.new)
    assert process.result(directory, "shop", checked) == case.answers[1]
    after = process.modules()
    assert {name for name in after if after[name] is not before.get(name)} == case.anew
    # And once more, with nothing new.
    assert process.result(directory, "shop", checked) == case.answers[1]
    assert case.late or process.modules() == after


@CHECKED
@pytest.mark.parametrize("name", CASES)
def test_a_job_runs_its_own_version_of_files_that_it_brings(
    process: Process, name: str, checked: bool
) -> None:
    case = CASES[name]
    first = process.write("a", case.old)
    second = process.write("b", {**case.old, **case.new})
    for directory, answer in ((first, 0), (second, 1), (first, 0), (second, 1)):
        assert process.result(directory, "shop", checked) == case.answers[answer]
        places = {
            Path(module.__file__ or "").relative_to(process.root).parts[0]
            for name, module in process.modules().items()
            if name in case.old
        }
        assert places == {directory.name}


def test_bytecode_of_another_text_is_not_taken(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    directory = process.write("a", {"shop": ANSWER.format(1), "rules": "PRICE = 1\n"})
    file = directory / f"{PREFIX}shop.py"
    assert process.result(directory, "shop") == 1
    status = file.stat()
    process.write("a", {"shop": ANSWER.format(2)})
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert Path(cache_from_source(str(file))).exists()
    assert process.result(directory, "shop") == 2


def test_bytecode_of_another_text_is_not_taken_by_the_first_job(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    directory = process.write("a", {"shop": ANSWER.format(1)})
    process.driver(directory, "shop", checked=True)
    file = directory / f"{PREFIX}shop.py"
    status = file.stat()
    process.write("a", {"shop": ANSWER.format(2)})
    assert Path(cache_from_source(str(file))).exists()
    payload = process.driver(process.write("b", {"shop": ANSWER.format(2)}), "shop", checked=True)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    operator = Operator("job", directory, payload)
    assert operator.answer() == 2
    operator.end()


# -- jobs that live at the same time ------------------------------------------------------

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
    before = process.modules()
    process.write("a", {"shop": SHARED["shop"].replace("1", "2")})
    assert process.result(directory, "shop", checked) == 2
    after = process.modules()
    assert {name for name in after if after[name] is not before[name]} == {"shop"}
    assert bank.answer() == "common"


def test_a_module_that_another_job_uses_is_refused_by_name(process: Process) -> None:
    directory = process.write("a", SHARED)
    bank = process.submit(directory, "bank")
    before = process.modules()
    changed = process.write("b", {**SHARED, "common": "WORD = 'other'\n"})
    with pytest.raises(StaleCodeError) as caught:
        process.submit(changed, "bank")
    text = str(caught.value)
    assert f"another version of the module {PREFIX}common in memory" in text
    assert "in use by the job 'name of job 0' (job 0)" in text
    assert "stop that job first" in text
    assert process.modules() == before
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
    first, second = process.write("a", SHARED), process.write("b", SHARED)
    one = process.submit(first, "bank")
    before = process.modules()
    two = process.submit(second, "bank")
    assert process.modules() == before
    assert one.answer() == two.answer() == "common"


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
    one, two = process.submit(first, "start"), process.submit(first, "start")
    payload = process.driver(first, "shop", checked=True)
    names = one.do(lambda: module_renewal.operator_arrives("one", "", payload))
    one.do(lambda: importlib.import_module(f"{PREFIX}shop"))
    two.do(lambda: module_renewal.operator_loaded(module_renewal.operator_arrives("two", "", payload)))
    one.do(lambda: module_renewal.operator_loaded(names))
    for operator in (one, two):
        operator.end()
    before = process.modules()
    assert process.result(first, "shop") == 1
    assert process.modules() == before


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
    before = process.modules()
    process.write("a", {"common": "WORD = 'new'\n"})
    again = Operator("one", directory, payload)
    assert again.answer() == "common"
    assert process.modules() == before
    again.end()


def test_code_that_goes_on_behind_its_thread_is_in_use(process: Process) -> None:
    directory = process.write("a", SHARED)
    bank = process.submit(directory, "bank")
    attempt: Attempt = bank.do(lambda: Attempt("identity", lambda wait: None))
    bank.end()
    process.write("a", {"common": "WORD = 'new'\n"})
    with pytest.raises(StaleCodeError, match=r"in use by the job 'name of job 0'"):
        process.submit(directory, "bank")
    attempt.end(wait=True)
    assert process.result(directory, "bank") == "new"


def test_a_job_waits_for_threads_that_are_about_to_end(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_renewal, "WAIT_SECONDS", 60.0)
    directory = process.write("a", SHARED)
    bank = process.submit(directory, "bank")
    monkeypatch.setattr(module_renewal.time, "sleep", lambda seconds: bank.end())
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
    before = process.modules()
    process.write("a", {"rules": "PRICE = 2\n"})
    assert process.result(directory, "bank") == 1
    assert process.modules()["rules"] is before["rules"]
    shop.end()
    assert process.result(directory, "shop") == 2


# -- what is kept of a module elsewhere ---------------------------------------------------

TYPES = """
import enum
from collections import namedtuple
from dataclasses import dataclass
from pydantic import BaseModel

class Model(BaseModel):
    price: int = {0}
    {1}: str = ""

@dataclass
class Data:
    price: int = {0}
    {1}: str = ""

Named = namedtuple("Named", ["price", "{1}"], defaults=[{0}, ""])

class Kind(enum.Enum):
    {1} = {0}

def values():
    return [Model(), Data(), Named(), Kind.{1}]

def call(price={0}):
    return price

def answer():
    return [Model, Data, Named, Kind, call]
"""


def test_caches_of_classes_forget_the_old_ones(process: Process) -> None:
    codec = ValueCodec()
    directory = process.write("a", {"shop": TYPES.format(1, "old")})
    process.result(directory, "shop")
    old = process.modules()["shop"]
    data = codec.encode(old.values()[:3])
    assert codec.decode(data) == old.values()[:3]
    durable_callable(old.call, {})

    process.write("a", {"shop": TYPES.format(2, "new")})
    process.result(directory, "shop")
    new = process.modules()["shop"]
    assert new is not old
    assert codec.decode(codec.encode(new.values())) == new.values()
    found = codec.decode(codec.encode([new.Model(new="x")]))
    assert type(found[0]) is new.Model and isinstance(found[0], BaseModel)
    with pytest.raises(Exception, match="cannot be written"):
        codec.encode(old.values())


def test_tracebacks_show_the_new_lines(process: Process) -> None:
    import linecache

    directory = process.write("a", {"shop": ANSWER.format(1)})
    process.result(directory, "shop")
    file = str(directory / f"{PREFIX}shop.py")
    assert linecache.getline(file, 2) == "    return 1\n"
    process.write("a", {"shop": ANSWER.format(2)})
    process.result(directory, "shop")
    assert linecache.getline(file, 2) == "    return 2\n"


def test_directories_of_jobs_that_are_over_leave_the_path(process: Process) -> None:
    gone = process.root / "python-dist-1" / "python-files"
    kept = process.root / "python-dist-2" / "python-files"
    kept.mkdir(parents=True)
    sys.path[:0] = [str(gone), str(kept), str(gone)]
    process.result(process.write("a", {"shop": ANSWER.format(1)}), "shop")
    assert str(gone) not in sys.path
    assert str(kept) in sys.path


def test_another_name_of_a_module_leads_to_the_new_one(process: Process) -> None:
    sources = {
        "rules": "import sys\nPRICE = 1\nsys.modules['$prices'] = sys.modules[__name__]\n",
        "shop": "import $rules\nfrom $prices import PRICE\ndef answer():\n    return PRICE\n",
    }
    directory = process.write("a", sources)
    assert process.result(directory, "shop") == 1
    process.write("a", {"rules": sources["rules"].replace("1", "2")})
    assert process.result(directory, "shop") == 2


def test_modules_in_packages_without_a_file_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python asks memory for the outer one of two namespace packages, and nothing of them is there."""
    for place in ("one", "other"):
        inner = tmp_path / place / "outer_namespace" / "inner_namespace" / f"{place}_package"
        inner.mkdir(parents=True)
        (inner / "__init__.py").write_text("")
        (inner / "module.py").write_text("x = 1\n")
        monkeypatch.syspath_prepend(str(tmp_path / place))
    for place in ("one", "other"):
        name = f"outer_namespace.inner_namespace.{place}_package.module"
        spec = user_modules.find_spec(name)
        assert spec is not None and spec.origin is not None and place in spec.origin
    assert user_modules.find_spec("outer_namespace.inner_namespace.no_package.module") is None
    assert user_modules.find_spec("outer_namespace.no_namespace.module") is None
    assert "outer_namespace" not in sys.modules
