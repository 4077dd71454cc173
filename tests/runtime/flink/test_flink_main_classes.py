"""Classes of main scripts: jobs of one process come one after the other, or live beside each other."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flink_agents import Agent
from flink_agents.api.errors import StaleCodeError
from flink_agents.runtime.flink.shipping import code_digest, main_module, user_modules
from flink_agents.runtime.flink.shipping.main_module import class_digest
from flink_agents.runtime.serde.codec import ValueCodec

SHIP = """
import sys, cloudpickle
from flink_agents.runtime.flink.shipping.main_module import announcement
from flink_agents.runtime.flink.shipping.main_module import MainModule
payloads = [cloudpickle.dumps(one) for one in ((MainModule(), make), (None, make))]
sys.stdout.buffer.write(cloudpickle.dumps((*payloads, announcement(sys.modules["__main__"]))))
"""

ONE = {
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass Order:\n    price: int = 1\n",
    "model": (
        "from pydantic import BaseModel, Field\nclass Item(BaseModel):\n    name: str = 'x'\n"
        "class Order(BaseModel):\n    items: list[Item] = Field(default_factory=list)\n    price: int = 1\n"
    ),
    "event": "from flink_agents import Event\nclass Order(Event):\n    price: int = 1\n",
    "named tuple": "from typing import NamedTuple\nclass Order(NamedTuple):\n    price: int = 1\n",
    "enum": "import enum\nclass Kind(enum.Enum):\n    BIG = 1\ndef Order():\n    return Kind.BIG\n",
    "plain": "class Order:\n    price = 1\n    def twice(self):\n        return 2 * self.price\n",
}
KINDS = pytest.mark.parametrize("kind", ONE)


def driver(directory: Path, source: str, made: str = "Order()") -> bytes:
    """What a script ships, in a process of its own."""
    return shipped(directory, source, made)[0]


def shipped(directory: Path, source: str, made: str = "Order()") -> tuple[bytes, bytes, str]:
    """What an agent ships, what a function of PyFlink's own does, and what the job announces."""
    script = directory / "job.py"
    script.write_text(f"{source}\ndef make():\n    return {made}\n{SHIP}", encoding="utf-8")
    out = subprocess.run([sys.executable, str(script)], capture_output=True, check=True).stdout
    return pickle.loads(out)


class Operator(threading.Thread):
    """An operator that a job has put into the worker, until it ends."""

    def __init__(self, job: str, payload: bytes, announced: str | None = None) -> None:
        super().__init__(daemon=True)
        self._job = job
        self._payload = payload
        self._announced = announced
        self._ready, self._over = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self.make: Callable[[], Any]
        self.start()
        self._ready.wait()
        if self._error is not None:
            self.join()
            raise self._error

    def run(self) -> None:
        try:
            main_module._unpickle_operator(self._job, "", b"N.", self._announced)
            _, self.make = pickle.loads(self._payload)
        except BaseException as error:
            self._error = error
            self._ready.set()
            return
        self._ready.set()
        self._over.wait()

    def end(self) -> None:
        self._over.set()
        self.join()


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.setattr(main_module, "in_flink_worker", lambda: True)
    monkeypatch.setattr(main_module, "_prepare_worker", lambda: None)
    monkeypatch.setattr(main_module, "_installed", {})
    monkeypatch.setattr(user_modules, "_uses", set())
    monkeypatch.setattr(code_digest, "_known_jobs", {})
    monkeypatch.setattr(code_digest, "_loading", set())
    monkeypatch.setattr(code_digest, "_renew_changed", lambda use: None)
    # Those of the test before, which had a process of its own in all else.
    user_modules.forget_classes()
    yield module
    user_modules.forget_classes()


def travels(value: Any) -> bool:
    """Whether a record between two operators comes out as it went in."""
    received_value = pickle.loads(pickle.dumps(value))
    return type(received_value) is type(value) and (
        received_value == value or type(value).__name__ == "Order"
    )


@pytest.mark.nightly(beyond=2)
@KINDS
def test_two_jobs_of_one_script_have_one_class(main: ModuleType, tmp_path: Path, kind: str) -> None:
    first_operator = Operator("a", driver(tmp_path, ONE[kind]))
    record = first_operator.make()
    two = Operator("b", driver(tmp_path, ONE[kind]))
    assert type(two.make()) is type(record)
    assert travels(record) and travels(first_operator.make()) and travels(two.make())
    first_operator.end()
    three = Operator("c", driver(tmp_path, ONE[kind]))
    assert travels(two.make()) and travels(three.make())
    two.end()
    three.end()


@pytest.mark.nightly(beyond=2)
@KINDS
def test_another_class_of_a_job_that_lives_is_refused(main: ModuleType, tmp_path: Path, kind: str) -> None:
    first_operator = Operator("a", driver(tmp_path, ONE[kind]))
    changed = driver(tmp_path, ONE[kind].replace("1", "2"))
    with pytest.raises(StaleCodeError) as caught:
        Operator("b", changed)
    text = str(caught.value)
    assert "in its main script" in text and "the class of the job '' (a)" in text
    assert travels(first_operator.make())
    first_operator.end()
    two = Operator("b", changed)
    assert travels(two.make())
    two.end()


@pytest.mark.nightly(beyond=2)
@KINDS
def test_a_function_of_pyflinks_own_comes_first(main: ModuleType, tmp_path: Path, kind: str) -> None:
    first_operator = Operator("a", driver(tmp_path, ONE[kind]))
    agent, function, announced = shipped(tmp_path, ONE[kind])
    two = [Operator("b", payload, announced) for payload in (function, agent, function)]
    for operator in (first_operator, *two):
        assert type(operator.make()) is type(first_operator.make()) and travels(operator.make())
    _, function, announced = shipped(tmp_path, ONE[kind].replace("1", "2"))
    with pytest.raises(StaleCodeError, match="in its main script"):
        Operator("c", function, announced)
    for operator in (first_operator, *two):
        operator.end()


def test_a_function_needs_no_agent_for_its_records(main: ModuleType, tmp_path: Path) -> None:
    agent, function, announced = shipped(tmp_path, ONE["dataclass"])
    first_operator = Operator("a", function, announced)
    main_module.install_late(main, announced)
    assert travels(first_operator.make())
    two = Operator("a", agent, announced)
    assert type(two.make()) is type(first_operator.make()) and travels(first_operator.make())
    first_operator.end()
    two.end()


@pytest.mark.nightly(beyond=2)
@KINDS
def test_a_class_that_came_too_early_does_no_harm(main: ModuleType, tmp_path: Path, kind: str) -> None:
    agent, function, announced = shipped(tmp_path, ONE[kind])
    early = Operator("b", function, announced)
    first_operator = Operator("a", driver(tmp_path, ONE[kind]))
    with pytest.raises(StaleCodeError, match="start it again"):
        Operator("b", agent, announced)
    assert travels(first_operator.make())
    early.end()
    again = [Operator("b", payload, announced) for payload in (function, agent)]
    for operator in (first_operator, *again):
        assert type(operator.make()) is type(first_operator.make()) and travels(operator.make())
        operator.end()


@pytest.mark.nightly(beyond=2)
@pytest.mark.parametrize("kind", [kind for kind in ONE if kind != "plain"])
def test_state_has_the_class_of_the_job_that_came_last(main: ModuleType, tmp_path: Path, kind: str) -> None:
    codec = ValueCodec()
    first_operator = Operator("a", driver(tmp_path, ONE[kind]))
    old = first_operator.make()
    data = codec.encode(old)
    assert type(codec.decode(data)) is type(old)
    first_operator.end()
    two = Operator("b", driver(tmp_path, ONE[kind].replace("price: int = 1", "price: int = 2")))
    new = two.make()
    assert type(codec.decode(codec.encode(new))) is type(new) is not type(old)
    assert type(codec.decode(data)) is type(new)
    two.end()


FIELDS = {
    "required": ("price: int", "Order(7)"),
    "default": ("price: int = 1", "Order(7)"),
    "factory": ("items: list = field(default_factory=list)", "Order([7])"),
    "class variable": ("price: int\n    count: ClassVar[int] = 3", "Order(7)"),
    "keyword": ("price: int\n    _: KW_ONLY\n    count: int = 0", "Order(7, count=2)"),
    "inherited": ("price: int\n@dataclass\nclass Order(Order):\n    count: int = 1", "Order(7, 8)"),
}


@pytest.mark.parametrize("fields", FIELDS)
def test_a_dataclass_of_a_main_script_keeps_its_fields(main: ModuleType, tmp_path: Path, fields: str) -> None:
    body, expression = FIELDS[fields]
    head = "from dataclasses import KW_ONLY, dataclass, field, fields\nfrom typing import ClassVar\n"
    source = f"{head}@dataclass\nclass Order:\n    {body}\n"
    payload = driver(tmp_path, source, expression)
    operator = Operator("a", payload)
    value = operator.make()
    assert "7" in repr(value)
    again = ValueCodec().decode(ValueCodec().encode(value))
    assert again == value and repr(again) == repr(value)
    defaults = [field.default for field in dataclasses.fields(value)]
    assert (dataclasses.MISSING in defaults) == (fields != "default")
    operator.end()


def test_operators_of_one_job_share_its_classes(main: ModuleType, tmp_path: Path) -> None:
    payload = driver(tmp_path, ONE["model"])
    operators = [Operator("a", payload) for _ in range(3)]
    assert len({type(operator.make()) for operator in operators}) == 1
    for operator in operators:
        assert travels(operator.make())
        operator.end()


def test_agents_may_have_one_name(main: ModuleType, tmp_path: Path) -> None:
    source = "from flink_agents import Agent\nclass Order(Agent):\n    price = {}\n"
    first_operator, two = (
        Operator(str(number), driver(tmp_path, source.format(number))) for number in (1, 2)
    )
    assert (first_operator.make().price, two.make().price) == (1, 2)
    first_operator.end()
    two.end()


def test_classes_of_other_names_get_in_nobodys_way(main: ModuleType, tmp_path: Path) -> None:
    first_operator = Operator("a", driver(tmp_path, ONE["dataclass"]))
    two = Operator("b", driver(tmp_path, ONE["enum"]))
    assert travels(first_operator.make()) and travels(two.make())
    first_operator.end()
    two.end()


def test_the_digest_of_a_class_is_that_of_its_text() -> None:
    def make_class(source: str) -> type:
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(source, names)
        return names["Order"] if isinstance(names["Order"], type) else names["Kind"]

    for source in ONE.values():
        assert class_digest(make_class(source)) == class_digest(make_class(source))
        assert class_digest(make_class(source)) != class_digest(make_class(source.replace("1", "2")))
    assert class_digest(type("A", (Agent,), {})) != class_digest(type("A", (), {}))
