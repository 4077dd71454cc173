"""A worker process that runs jobs with versions of their modules, one after the other or together."""

from __future__ import annotations

import importlib
import pickle
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flink_agents.runtime.flink.shipping import code_digest, user_modules
from flink_agents.runtime.flink.shipping.code_digest import CodeCheck, interpreter_name, modules_used

Sources = Mapping[str, str]

ANSWER = "def answer():\n    return {}\n"

CHECKED = pytest.mark.parametrize("checked", [True, False], ids=["agent", "function of PyFlink"])
"""Whether what comes checks the code of its job."""

PREFIX = "renewed_"
"""All modules of these tests begin with it: nothing else of this process may be renewed."""


class _Reference:
    """A function by name, as cloudpickle ships those of modules."""

    def __init__(self, module: str, name: str) -> None:
        self._place = (module, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _import_object, self._place


def _import_object(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


class Operator(threading.Thread):
    """An operator in the thread that Flink runs it in: it arrives, answers, and stays until it is ended."""

    def __init__(self, job: str, directory: Path, payload: bytes) -> None:
        super().__init__(daemon=True)
        self._job = job
        self._directory = directory
        self._payload = payload
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
        names = code_digest.operator_arrives(self._job, f"name of {self._job}", self._payload)
        try:
            check, self.function = pickle.loads(self._payload)
            if check is not None:
                check.check_modules()
        finally:
            code_digest.operator_loaded(names)

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
        saved_modules = {name: value for name, value in sys.modules.items() if name.startswith(PREFIX)}
        path = list(sys.path)
        for name in saved_modules:
            del sys.modules[name]
        sys.path.insert(0, str(directory))
        importlib.invalidate_caches()
        try:
            importlib.import_module(PREFIX + module)
            modules = tuple(modules_used([PREFIX + module]))
        finally:
            for name in [name for name in sys.modules if name.startswith(PREFIX)]:
                del sys.modules[name]
            sys.modules.update(saved_modules)
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


@contextmanager
def process_of_a_test(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    """A process that knows of the modules of these tests only."""
    is_of_user = user_modules.is_of_user

    def is_of_test(name: str, module: ModuleType) -> bool:
        return name.startswith(PREFIX) and is_of_user(name, module)

    for place in (user_modules, code_digest):
        monkeypatch.setattr(place, "is_of_user", is_of_test)
    monkeypatch.setattr(code_digest, "in_flink_worker", lambda: True)
    monkeypatch.setattr(code_digest, "_accepted", {})
    monkeypatch.setattr(user_modules, "_uses", set())
    monkeypatch.setattr(code_digest, "_known_jobs", {})
    monkeypatch.setattr(code_digest, "_loading", set())
    monkeypatch.setattr(user_modules, "_notes", {})
    monkeypatch.setattr(code_digest, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(sys, "path", list(sys.path))
    process = Process(root)
    yield process
    process.close()
    for name in [name for name in sys.modules if name.startswith(PREFIX)]:
        del sys.modules[name]
