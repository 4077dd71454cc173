"""A job that comes to a process with another version of a module than the one before gets its own."""

from __future__ import annotations

import os
import sys
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import pytest
from renewal_tools import ANSWER, CHECKED, PREFIX, Operator, Process, Sources


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
        self.old = old
        self.new = new
        self.answers = answers
        self.anew = anew
        self.late = late


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


@CHECKED
@pytest.mark.parametrize("name", CASES)
def test_a_job_runs_its_own_version_of_files_that_changed(process: Process, name: str, checked: bool) -> None:
    case = CASES[name]
    directory = process.write("a", case.old)
    assert process.result(directory, "shop", checked) == case.answers[0]
    previous_modules = process.modules()
    process.write("a", case.new)
    assert process.result(directory, "shop", checked) == case.answers[1]
    after = process.modules()
    assert {name for name in after if after[name] is not previous_modules.get(name)} == case.anew
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
