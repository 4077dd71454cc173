"""What is kept of a module elsewhere follows when a job comes with another version of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pydantic import BaseModel
from renewal_tools import ANSWER, PREFIX, Process

from flink_agents.api.durable import durable_callable
from flink_agents.runtime.flink.shipping import user_modules
from flink_agents.runtime.serde.codec import ValueCodec

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
    models = codec.decode(codec.encode([new.Model(new="x")]))
    assert type(models[0]) is new.Model and isinstance(models[0], BaseModel)
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
    missing_path = process.root / "python-dist-1" / "python-files"
    existing_path = process.root / "python-dist-2" / "python-files"
    existing_path.mkdir(parents=True)
    sys.path[:0] = [str(missing_path), str(existing_path), str(missing_path)]
    process.result(process.write("a", {"shop": ANSWER.format(1)}), "shop")
    assert str(missing_path) not in sys.path
    assert str(existing_path) in sys.path


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
