"""What takes over stored values reaches the workers, also if the main script defines it."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import cloudpickle
import pytest

from flink_agents.api.durable import upgrades
from flink_agents.runtime.flink.shipping import main_module

SCRIPT = """
from dataclasses import dataclass
from flink_agents import upgrades

@upgrades("__main__:Old")
@dataclass
class New:
    number: int

@upgrades("__main__:Older")
def older(fields):
    return New(fields["value"])
"""


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, upgrades.Upgrade]]:
    registered_upgrades: dict[str, upgrades.Upgrade] = {}
    monkeypatch.setattr(upgrades, "_upgrades", registered_upgrades)
    yield registered_upgrades


def test_upgrades_of_a_main_script_are_registered_on_the_worker(
    monkeypatch: pytest.MonkeyPatch, registry: dict[str, upgrades.Upgrade]
) -> None:
    script = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", script)
    exec(compile(SCRIPT, "script.py", "exec", dont_inherit=True), script.__dict__)
    assert set(registry) == {"__main__:Old", "__main__:Older"}
    make, (_, shipped) = main_module.MainModule().__reduce__()
    assert make is main_module._unpickle_main
    data = {name: bytes(payload) for name, payload in shipped.items()}
    registry.clear()
    monkeypatch.setattr(main_module, "in_flink_worker", lambda: True)
    monkeypatch.setattr(main_module, "install_classes", lambda module, classes: None)
    monkeypatch.setattr(main_module, "_prepare_worker", lambda: None)
    main_module._unpickle_main({}, data)
    assert upgrades.upgrade_of("__main__:Old") is script.__dict__["New"]
    older = upgrades.upgrade_of("__main__:Older")
    assert older is not None and older({"value": 3}).number == 3


def test_an_upgrade_whose_module_is_not_there_does_not_stop_the_worker(
    monkeypatch: pytest.MonkeyPatch, registry: dict[str, upgrades.Upgrade]
) -> None:
    monkeypatch.setattr(main_module, "in_flink_worker", lambda: True)
    monkeypatch.setattr(main_module, "install_classes", lambda module, classes: None)
    monkeypatch.setattr(main_module, "_prepare_worker", lambda: None)
    payload = cloudpickle.dumps(len).replace(b"builtins", b"no_where")
    main_module._unpickle_main({}, {"shop:Order": payload})
    assert registry == {}
