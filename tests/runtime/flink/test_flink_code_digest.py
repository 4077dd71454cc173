"""Stale modules: what the check finds, what it lets pass, and which modules it looks at."""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from digested_disk import NAME, Disk, check_of

from flink_agents.api.errors import StaleCodeError
from flink_agents.api.errors.base import code_line
from flink_agents.runtime.flink.shipping import code_digest
from flink_agents.runtime.flink.shipping.code_digest import (
    CodeCheck,
    digest_code,
    functions_in,
    interpreter_name,
)


def check_with_stale(disk: Disk, old: str, new: str) -> CodeCheck:
    """The check of a job with ``new``, in a process that has ``old`` in memory."""
    stale = disk.load(old, place="old")
    disk.load(new, place="new")
    check = check_of(NAME)
    assert [module.name for module in check.modules] == [NAME]
    sys.modules[NAME] = stale
    return check


# -- what is found ------------------------------------------------------------------------


WRAPS = """
import functools

def logged(function):
    @functools.wraps(function)
    def call(*arguments):
        return function(*arguments)
    return call

def quiet(function):
    def call(*arguments):
        return function(*arguments)
    return call
"""


CHANGED = {
    "constant in a body": ("def f():\n    return 1\n", "def f():\n    return 2\n", "f"),
    "equal constant of another type": ("def f():\n    return 1\n", "def f():\n    return True\n", "f"),
    "sign of zero": ("def f():\n    return 0.0\n", "def f():\n    return -0.0\n", "f"),
    "number and text": ("def f():\n    return 1\n", "def f():\n    return '1'\n", "f"),
    "kind of arguments": ("def f(*a):\n    return a\n", "def f(**a):\n    return a\n", "f"),
    "end of a try": (
        "def f():\n    try:\n        g()\n        h()\n    except E:\n        pass\n",
        "def f():\n    try:\n        g()\n    except E:\n        pass\n    else:\n        h()\n",
        "f",
    ),
    "operator": ("def f(a):\n    return a + 1\n", "def f(a):\n    return a - 1\n", "f"),
    "called name": ("def f():\n    return min()\n", "def f():\n    return max()\n", "f"),
    "item of a tuple": (
        "def f(a):\n    return a == (1, ('x', 2))\n",
        "def f(a):\n    return a == (1, ('x', 3))\n",
        "f",
    ),
    "item of a set": ("def f(a):\n    return a in {1, 2}\n", "def f(a):\n    return a in {1, 3}\n", "f"),
    "docstring, which describes a tool": ("def f():\n    'a'\n", "def f():\n    'b'\n", "f"),
    "caught exception": (
        "def f():\n    try:\n        g()\n    except KeyError:\n        pass\n",
        "def f():\n    try:\n        g()\n    except IndexError:\n        pass\n",
        "f",
    ),
    "def and async def": ("def f():\n    pass\n", "async def f():\n    pass\n", "f"),
    "lambda": ("f = lambda a: a > 1\n", "f = lambda a: a > 2\n", "<lambda>"),
    "comprehension": (
        "def f(a):\n    return [b for b in a if b]\n",
        "def f(a):\n    return [b for b in a if not b]\n",
        "f",
    ),
    "function in a function": (
        "def f():\n    def g():\n        return 1\n    return g\n",
        "def f():\n    def g():\n        return 2\n    return g\n",
        "f",
    ),
    "closure": (
        "def make(n):\n    return lambda a: a + n\nadd = make(1)\n",
        "def make(n):\n    return lambda a: a - n\nadd = make(1)\n",
        "make, make.<locals>.<lambda>",
    ),
    "method": (
        "class A:\n    def f(self):\n        return 1\n",
        "class A:\n    def f(self):\n        return 2\n",
        "A.f",
    ),
    "method of a nested class": (
        "class A:\n    class B:\n        def f(self):\n            return 1\n",
        "class A:\n    class B:\n        def f(self):\n            return 2\n",
        "A.B.f",
    ),
    "static and class method, property": (
        "class A:\n    @staticmethod\n    def s():\n        return 1\n    @classmethod\n    def c(cls):\n"
        "        return 1\n    @property\n    def p(self):\n        return 1\n",
        "class A:\n    @staticmethod\n    def s():\n        return 2\n    @classmethod\n    def c(cls):\n"
        "        return 2\n    @property\n    def p(self):\n        return 2\n",
        "A.c, A.p, A.s",
    ),
    "wrapped function": (
        f"{WRAPS}\n@logged\ndef f():\n    return 1\n",
        f"{WRAPS}\n@logged\ndef f():\n    return 2\n",
        "f",
    ),
    "wrapped function that nothing names": (
        f"{WRAPS}\n@quiet\ndef f():\n    return 1\n",
        f"{WRAPS}\n@quiet\ndef f():\n    return 2\n",
        "f",
    ),
    "cached function": (
        "import functools\n@functools.lru_cache\ndef f():\n    return 1\n",
        "import functools\n@functools.lru_cache\ndef f():\n    return 2\n",
        "f",
    ),
    "partial": (
        "import functools\nf = functools.partial(lambda a, b: a, 1)\n",
        "import functools\nf = functools.partial(lambda a, b: b, 1)\n",
        "<lambda>",
    ),
    "method of a data class": (
        "from dataclasses import *\n@dataclass\nclass A:\n    a: int\n    def f(self):\n        return 1\n",
        "from dataclasses import *\n@dataclass\nclass A:\n    a: int\n    def f(self):\n        return 2\n",
        "A.f",
    ),
    "method of a model": (
        "import pydantic\nclass A(pydantic.BaseModel):\n    a: int\n    def f(self):\n        return 1\n",
        "import pydantic\nclass A(pydantic.BaseModel):\n    a: int\n    def f(self):\n        return 2\n",
        "A.f",
    ),
    "function that the new version has no more": ("def f():\n    pass\n", "def g():\n    pass\n", "f"),
}


@pytest.mark.parametrize(("old", "new", "names"), CHANGED.values(), ids=CHANGED.keys())
def test_a_change_is_found_and_named(disk: Disk, old: str, new: str, names: str) -> None:
    check = check_with_stale(disk, old, new)
    with pytest.raises(StaleCodeError) as caught:
        check.check_modules()
    difference = caught.value.found or ""
    assert sorted(difference.removeprefix("another ").split("; ")[0].split(", ")) == names.split(", ")


def test_the_text_says_what_to_do(disk: Disk) -> None:
    bodies = {n: "".join(f"def f{i}():\n    return {n}\n" for i in range(7)) for n in (1, 2)}
    check = check_with_stale(disk, bodies[1], bodies[2])
    with pytest.raises(StaleCodeError) as caught:
        check.check_modules()
    stale = Path(sys.modules[NAME].__file__ or "")
    lines = str(caught.value).split("\n")
    assert lines[0].endswith(f"{NAME}.py: the worker has another version of the module {NAME} in memory")
    assert str(stale.parent.with_name("new")) in os.path.abspath(lines[0])
    assert lines[2] == (
        f"  found: another f0, f1, f2, f3, f4 and 2 more; in process {os.getpid()}, loaded from {stale}"
    )
    assert lines[3].startswith("  fix: restart the TaskManager")
    assert lines[4] == code_line("FA2005")


def test_it_is_found_before_anything_else_is_unpickled(disk: Disk) -> None:
    old = "class Shop:\n    def sell(self):\n        return 1\n"
    check = check_with_stale(disk, old, old.replace("sell", "offer"))
    with pytest.raises(StaleCodeError):
        pickle.loads(pickle.dumps(check))


def test_values_outside_of_functions_are_found_against_an_earlier_job(disk: Disk) -> None:
    checks: dict[int, CodeCheck] = {}
    for limit in (1, 2):
        disk.load(f"LIMIT = {limit}\ndef f(a):\n    return a > LIMIT\n", place=str(limit))
        checks[limit] = check_of(NAME)
    # The module in memory is that of the second one, and nothing can tell.
    checks[2].check_modules()
    checks[2].check_modules()
    with pytest.raises(StaleCodeError, match="differs outside of functions"):
        checks[1].check_modules()
    with pytest.raises(StaleCodeError, match="differs outside of functions"):
        pickle.loads(pickle.dumps(checks[1]))


def test_nothing_is_remembered_while_modules_may_still_be_imported(disk: Disk) -> None:
    checks: list[CodeCheck] = []
    for limit in (1, 2):
        disk.load(f"LIMIT = {limit}\n", place=str(limit))
        checks.append(check_of(NAME))
    for check in checks:
        pickle.loads(pickle.dumps(check))
    checks[1].check_modules()


def test_a_module_that_is_loaded_again_is_new(disk: Disk) -> None:
    module = disk.load("LIMIT = 1\n")
    check_of(NAME).check_modules()
    Path(module.__file__ or "").write_text("LIMIT = 1000\n", encoding="utf-8")
    importlib.reload(module)
    check_of(NAME).check_modules()


# -- what passes --------------------------------------------------------------------------


RICH = f"""{WRAPS}
import dataclasses, enum, types, typing
import pydantic

class Point(typing.NamedTuple):
    x: int = 0
    def moved(self):
        return self._replace(x=self.x + 1)

@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Order:
    number: int
    tags: list = dataclasses.field(default_factory=lambda: [1])
    def known(self):
        return self.number in {{"a", "b", "c", 4, None}} or super().__eq__(self)

class Model(pydantic.BaseModel):
    a: int
    @pydantic.field_validator("a")
    @classmethod
    def check_a(cls, value):
        return value
    @pydantic.computed_field
    @property
    def b(self) -> int:
        return self.a

class Color(enum.Enum):
    RED = 1
    def paint(self):
        return f"{{self.value!r:>10}}"

@types.coroutine
def switch():
    yield

@logged
async def work(a, /, b, *, c=1):
    async with a as d:
        return {{e: f for e, f in d.items() if (g := f)}}

class Hollow:
    __wrapped__ = property(lambda self: 1 / 0)
    __class__ = property(lambda self: 1 / 0)
    def __getattr__(self, name):
        raise RuntimeError(name)

hollow = Hollow()
unbound = typing.Generic[typing.TypeVar("T")]
"""


def test_the_same_code_elsewhere_passes(disk: Disk) -> None:
    longer = "# a comment\n\n\n" + RICH.replace("\nclass", "\n# another\n\nclass")
    check = check_with_stale(disk, RICH, longer)
    function_names = {name for name, _ in functions_in(sys.modules[NAME])}
    expected = "Point.moved Order.known Model.check_a Model.b Color.paint switch work Hollow.__getattr__"
    assert function_names >= set(expected.split())
    assert not any("__init__" in name for name in function_names)
    check.check_modules()


def test_code_that_has_run_often_passes(disk: Disk) -> None:
    module = disk.load("def f(a):\n    return [b.real + 1 for b in a]\n")
    check = check_of(NAME)
    for _ in range(100):
        module.f(range(10))
    check.check_modules()
    assert digest_code(module.f.__code__) in check.modules[0].functions


def test_a_digest_is_the_same_in_each_process() -> None:
    program = (
        "from flink_agents.runtime.flink.shipping.code_digest import digest_code\n"
        'source = \'def f(a): return a in {"a", "b", "c", "d", "e"}\'\n'
        "print(digest_code(compile(source, 'a.py', 'exec')).hex())\n"
    )
    digests: set[str] = set()
    for seed in "12":
        environment = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", program]
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        digests.add(run.stdout)
    assert len(digests) == 1 and len(digests.pop()) == 17


def rewritten(value: int) -> int:
    assert value == 1, "pytest rewrites this"
    return value


def loaded_plainly() -> ModuleType:
    """This module as a worker has it, without pytest's hook."""
    spec = spec_from_file_location(__name__, __file__, loader=SourceFileLoader(__name__, __file__))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_module_that_pytest_has_rewritten_passes_here_and_in_a_worker(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = check_of(__name__)
    check.check_modules()
    plain = loaded_plainly()
    assert digest_code(plain.rewritten.__code__) != digest_code(rewritten.__code__)
    monkeypatch.setitem(sys.modules, __name__, plain)
    check.check_modules()

    code_digest._accepted.clear()
    exec(compile("def rewritten(value):\n    return 2\n", __file__, "exec"), vars(plain))
    with pytest.raises(StaleCodeError, match="another rewritten;"):
        check.check_modules()


def test_a_file_that_was_edited_after_its_import_passes_in_both_versions(disk: Disk) -> None:
    module = disk.load("def f():\n    return 1\n")
    Path(module.__file__ or "").write_text("def f():\n    return 1 + f()\n", encoding="utf-8")
    check = check_of(NAME)
    check.check_modules()
    importlib.reload(module)
    check.check_modules()


def test_a_module_that_the_worker_has_not_imported_passes(disk: Disk) -> None:
    disk.load("def f():\n    return 1\n")
    check = check_of(NAME)
    del sys.modules[NAME]
    check.check_modules()
    assert NAME not in sys.modules


def test_another_python_is_not_compared(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    check = check_with_stale(disk, "def f():\n    return 1\n", "def f():\n    return 2\n")
    other_check = CodeCheck("CPython 3.1.0 -O0", check.modules)
    with caplog.at_level(logging.WARNING, "flink_agents.code"):
        pickle.loads(pickle.dumps(other_check)).check_modules()
    assert [record.getMessage() for record in caplog.records] == [
        "stale modules are not looked for: the job is from CPython 3.1.0 -O0, "
        f"and this is {interpreter_name()}"
    ]
