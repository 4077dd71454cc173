"""Reading state imports and executes nothing that its bytes chose."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from flink_agents import Agent, InputEvent, OutputEvent
from flink_agents.api.action_state import RecordKind
from flink_agents.api.errors import (
    ActionFailedError,
    KeyEncodingError,
    RecordedFailureError,
    StateError,
    UnknownTypeNameError,
)
from flink_agents.runtime.serde import exceptions as failures, typenames
from flink_agents.runtime.serde.codec import ValueCodec
from flink_agents.runtime.serde.keys import decode_key, escape
from flink_agents.runtime.state.keyed_state import Head
from flink_agents.testing import OperatorHarness
from flink_agents.testing.fakes.state import KeyState
from tests.suite.tables import each_case

CODEC = ValueCodec()

CLASSES = """
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from pydantic import BaseModel


class Colour(Enum):
    RED = 1


class Model(BaseModel):
    number: int = 0


@dataclass
class Data:
    number: int = 0


class Tuple(NamedTuple):
    number: int = 0


class Failure(Exception):
    pass
"""

TRAP = (
    """
import builtins
builtins.sprung.append(__name__)
"""
    + CLASSES
)


@pytest.fixture(autouse=True)
def sprung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Modules that do something when they are imported, where Python finds them; gives what they did."""
    done: list[str] = []
    monkeypatch.setattr("builtins.sprung", done, raising=False)
    monkeypatch.setattr(typenames, "_homes", set[str]())
    monkeypatch.setattr(typenames, "_named", set[str]())
    monkeypatch.setattr(typenames, "_failed", dict[str, str]())
    typenames._read_imports.cache_clear()
    typenames.resolve_type.cache_clear()
    for path in (
        "trap.py",
        "setup.py",
        "trap_package/__init__.py",
        "trap_package/inner.py",
        "trap_package/deep/__init__.py",
        "trap_namespace/inner.py",
        "trap_shop/side.py",
        "trap_shop/lazy.py",
        "trap_parts.py",
        "trap_elsewhere.py",
    ):
        file = tmp_path / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(TRAP)
    (tmp_path / "trap_shop" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    previous_modules = set(sys.modules)
    yield done
    for name in set(sys.modules) - previous_modules:
        if name.startswith(("trap", "setup")):
            del sys.modules[name]
    typenames.resolve_type.cache_clear()


# -- bytes of each kind --------------------------------------------------------------


def tagged(code: int, content: list[Any]) -> bytes:
    """The bytes of a value of a class."""
    packed: Any = msgpack.packb({msgpack.ExtType(code, b""): content}, strict_types=True)
    return b"\x01" + packed


def reads(code: int, *content: Any) -> Callable[[str], Any]:
    return lambda name: CODEC.decode(tagged(code, [name, *content]))


def reads_failure(name: str) -> Any:
    error = failures.rebuild(CODEC, {"type": name, "message": "m", "args": CODEC.encode(["m"])})
    assert isinstance(error, RecordedFailureError)
    raise UnknownTypeNameError(error.message)


def reads_nested(name: str) -> Any:
    inner = {msgpack.ExtType(13, b""): [name, {}, b""]}
    return CODEC.decode(b"\x01" + msgpack.packb({"a": [1, {"b": inner}]}, strict_types=True))  # type: ignore[operator]


def reads_key(name: str) -> Any:
    return decode_key(f"e{escape(name).replace(chr(92) + ':', ':')}:RED")


READERS: dict[str, Callable[[str], Any]] = {
    "enum": reads(11, "RED"),
    "model": reads(12, 0, {"number": 1}, []),
    "dataclass": reads(13, {"number": 1}, b""),
    "named tuple": reads(14, {"number": 1}, b""),
    "nested": reads_nested,
    "failure": reads_failure,
    "key": reads_key,
}

CLASS_OF = {"enum": "Colour", "key": "Colour", "model": "Model", "named tuple": "Tuple", "failure": "Failure"}

NOT_THERE = (
    "trap",
    "setup",
    "this",
    "antigravity",
    "trap_package",
    "trap_package.inner",
    "trap_package.deep",
    "trap_namespace.inner",
    "trap_namespace",
    "trap_shop.side",
    "no_such_module",
    "no.such.module",
    "",
    ".",
    "..trap",
    "trap.",
    "os.path.no",
)


@each_case("module", NOT_THERE)
@each_case("kind", READERS)
def test_no_module_is_imported_by_its_name_in_bytes(kind: str, module: str, sprung: list[str]) -> None:
    previous_modules = set(sys.modules)
    for qualname in (CLASS_OF.get(kind, "Data"), "Data.number", "", "__builtins__.exec"):
        with pytest.raises(Exception) as caught:
            READERS[kind](f"{module}:{qualname}")
        assert type(caught.value).__name__ in ("UnknownTypeNameError", "KeyEncodingError")
    assert sprung == []
    assert not {
        name for name in set(sys.modules) - previous_modules if name.startswith(("trap", "setup", "this"))
    }


THERE = (
    "os:system",
    "os:environ.clear",
    "subprocess:Popen",
    "subprocess:Popen.__init__",
    "builtins:exec",
    "builtins:print",
    "builtins:open",
    "sys:exit",
    "sys:modules",
    "pathlib:Path",
    "collections:OrderedDict",
    "flink_agents.runtime.serde.codec:ValueCodec",
    "flink_agents.runtime.serde.codec:_read_row",
    "trap_lazy:Data",
    "trap_lazy_loader:Data",
    "trap_object:Data",
    "trap_liar:value",
    "trap_liar:Liar.attribute",
    "trap_liar:Meta.computed",
    "trap_liar:WithMeta.computed",
    "__main__:no_such_class",
)


def say(name: str) -> Any:
    """Note that something was executed."""
    sys.modules["builtins"].sprung.append(name)  # type: ignore[attr-defined]


class Meta(type):
    def __getattr__(cls, name: str) -> Any:
        return say(f"metaclass {name}")

    @property
    def computed(cls) -> Any:
        return say("property of a metaclass")


class WithMeta(metaclass=Meta):
    pass


class Liar:
    @property
    def __class__(self) -> Any:  # type: ignore[override]
        return say("class of a value") or Liar

    @property
    def attribute(self) -> Any:
        return say("property")

    def __getattr__(self, name: str) -> Any:
        return say(f"attribute {name}")


@pytest.fixture
def liars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that are there, and whose content is made when somebody asks for it."""
    lazy = types.ModuleType("trap_lazy")
    lazy.__getattr__ = lambda name: say(f"module {name}")  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "trap_lazy", lazy)
    spec = importlib.util.find_spec("trap_parts")
    assert spec is not None and spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    loading = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loading)
    monkeypatch.setitem(sys.modules, "trap_lazy_loader", loading)
    monkeypatch.setitem(sys.modules, "trap_object", Liar())  # type: ignore[arg-type]
    full = types.ModuleType("trap_liar")
    full.__dict__.update(value=Liar(), Liar=Liar, Meta=Meta, WithMeta=WithMeta)
    monkeypatch.setitem(sys.modules, "trap_liar", full)


@pytest.mark.usefixtures("liars")
@each_case("name", THERE)
@each_case("kind", READERS)
def test_nothing_that_is_there_is_executed_but_data_classes(
    kind: str, name: str, sprung: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "system", lambda *args: say("os.system"))
    monkeypatch.setattr(subprocess.Popen, "__init__", lambda *args: say("Popen"))
    with pytest.raises(Exception) as caught:
        READERS[kind](name)
    assert type(caught.value).__name__ in ("UnknownTypeNameError", "KeyEncodingError")
    assert sprung == []


def test_the_error_names_the_module_and_what_to_do() -> None:
    with pytest.raises(UnknownTypeNameError, match="trap:Data") as caught:
        READERS["dataclass"]("trap:Data")
    assert "is not imported" in str(caught.value.found)
    assert "state.modules" in str(caught.value.fix)


def test_texts_of_errors_are_bounded() -> None:
    with pytest.raises(UnknownTypeNameError) as caught:
        READERS["dataclass"]("x" * 100_000 + ":" + "y" * 100_000)
    assert len(str(caught.value)) < 2_000


# -- what may be imported ------------------------------------------------------------

AGENT = """
from flink_agents import Agent, InputEvent, OutputEvent


def read(event, ctx):
    memory = ctx.short_term_memory
    if event.input == "write":
        {statement}
        memory.set("kept", {value})
        try:
            ctx.durable_execute(refuse)
        except Exception as error:
            return OutputEvent(output=type(error).__name__)
    return OutputEvent(output=str(memory.get("kept")))


def refuse():
    {statement}
    raise {failure}("no")


def agent():
    return Agent(name="lazy").add_action("read", InputEvent, read)
"""

LAZY = {
    "module": ("import trap_elsewhere", "trap_elsewhere.Data(7)", "trap_elsewhere.Failure"),
    "name": ("from trap_shop.lazy import Data, Failure", "Data(7)", "Failure"),
    "other name": ("from trap_shop import lazy", "lazy.Data(7)", "lazy.Failure"),
    "relative": ("from .lazy import Data, Failure", "Data(7)", "Failure"),
    "relative module": ("from . import lazy", "lazy.Data(7)", "lazy.Failure"),
    "exported": ("from trap_shop.facade import Data, Failure", "Data(7)", "Failure"),
}


def lazy_agent(tmp_path: Path, statement: str, value: str, failure: str) -> Agent:
    """An agent in a package, whose functions import what they need."""
    text = AGENT.format(statement=statement, value=value, failure=failure)
    (tmp_path / "trap_shop" / "agents.py").write_text(text)
    (tmp_path / "trap_shop" / "facade.py").write_text("from trap_shop.lazy import Data, Failure\n")
    importlib.invalidate_caches()
    return importlib.import_module("trap_shop.agents").agent()


def forget_modules() -> None:
    """Let it be as in a new process that has imported the agent's module only."""
    for name in [name for name in sys.modules if name.startswith("trap") and name != "trap_shop.agents"]:
        del sys.modules[name]
    importlib.import_module("trap_shop")
    typenames.resolve_type.cache_clear()
    typenames._failed.clear()
    typenames._read_imports.cache_clear()


@pytest.mark.executes_once
@pytest.mark.parametrize("how", LAZY)
def test_what_the_agents_own_functions_import_is_imported(how: str, tmp_path: Path) -> None:
    harness = OperatorHarness(lazy_agent(tmp_path, *LAZY[how]))
    assert harness.push("write") == ["Failure"]
    saved = harness.snapshot()
    forget_modules()
    harness.restore(saved)
    assert harness.push("read") == ["Data(number=7)"]


@pytest.mark.executes_once
def test_a_recorded_failure_of_such_a_module_keeps_its_class(tmp_path: Path) -> None:
    from flink_agents.testing.faults import Fault, Faults, at_record

    faults = Faults(at_record(RecordKind.ACTION, Fault.REFUSED))
    harness = OperatorHarness(lazy_agent(tmp_path, *LAZY["name"]), store=faults.store)
    snapshot = harness.snapshot()
    with pytest.raises(Exception, match="rejects"):
        harness.push("write")
    forget_modules()
    harness.restore(snapshot)
    assert harness.push("write") == ["Failure"]


def restored_harness(name: str, config: dict[str, Any]) -> OperatorHarness:
    """An agent that reads its memory, which has a value of a class."""

    def read(event: InputEvent, ctx: Any) -> OutputEvent:
        return OutputEvent(output=type(ctx.short_term_memory.get("kept")).__name__)

    harness = OperatorHarness(Agent(name="a").add_action("read", InputEvent, read), config=config)
    head = Head("harness", next_seq=1, nodes=None).pack()
    state = KeyState(head, memory={"kept": (tagged(13, [name, {"number": 1}, b""]), None)})
    snapshot = harness.snapshot()
    harness.restore(type(snapshot)({"i0": state}, 0, {}, snapshot.max_parallelism))
    return harness


@pytest.mark.parametrize(
    ("named", "name"),
    [
        ("trap", "trap:Data"),
        ("no_such_module, trap ,", "trap:Data"),
        ("trap_package", "trap_package.inner:Data"),
        ("trap_namespace.inner", "trap_namespace.inner:Data"),
    ],
)
def test_what_the_option_names_is_imported(named: str, name: str, sprung: list[str]) -> None:
    assert restored_harness(name, {"state.modules": named}).push(1) == ["Data"]
    assert name.partition(":")[0] in sprung


@pytest.mark.parametrize("named", ["", "tra", "trap_packag", "trap_package.inner", "trap.Data", "setup"])
def test_what_the_option_does_not_name_is_not_imported(named: str, sprung: list[str]) -> None:
    for name in ("trap:Data", "trap_package.deep:Data"):
        with pytest.raises(ActionFailedError) as caught:
            restored_harness(name, {"state.modules": named}).push(1)
        assert isinstance(caught.value.__cause__, UnknownTypeNameError)
    assert sprung == []


def test_a_module_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    (tmp_path / "trap_broken.py").write_text("raise RuntimeError('not today')\n")
    for _ in range(2):
        with pytest.raises(ActionFailedError, match="importing trap_broken raised RuntimeError: not today"):
            restored_harness("trap_broken:Data", {"state.modules": "trap_broken"}).push(1)


# -- text from outside ---------------------------------------------------------------


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("name", ["trap:Colour", "trap_package.inner:Colour", "trap_package:Colour", "os:x"])
def test_a_key_in_text_from_outside_imports_nothing(name: str, nested: bool, sprung: list[str]) -> None:
    typenames.allow_modules(["trap"], "trap_package")
    key = f"e{name}:RED"
    text = f"t{len(key)}:{key}" if nested else key
    with pytest.raises(KeyEncodingError, match="not the canonical string"):
        decode_key(text, from_outside=True)
    assert sprung == []
    assert typenames._failed == {}


@each_case("name", ["trap:Data", "trap:Colour.RED", "trap:Nothing", ":", "trap:"])
def test_a_key_in_text_from_outside_names_a_member_of_an_enumeration(name: str) -> None:
    trap = importlib.import_module("trap")
    assert decode_key("etrap:Colour:RED", from_outside=True) is trap.Colour.RED
    for from_outside in (True, False):
        with pytest.raises(StateError):
            decode_key(f"e{name}:RED", from_outside=from_outside)
