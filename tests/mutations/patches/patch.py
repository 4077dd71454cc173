"""A mutation as a change of source text: in one function, a snippet is replaced by another.

The function's code object is replaced in place. So every reference sees the defect, also one that was
imported by name, and it can be put into a process that has imported everything.
"""

from __future__ import annotations

import ast
import functools
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

PACKAGE = "flink_agents"


class TargetGone(LookupError):
    """The code that a mutation changes is not there any more: point the mutation to where it is now."""


@dataclass(frozen=True)
class Patch:
    """One defect.

    Attributes:
        name: Its name on the command line.
        module: The module, below ``flink_agents``.
        function: Its qualified name in the module.
        old: What is replaced; it occurs once in the function. Indentation counts only within the snippet.
        new: What takes its place.
        about: What is wrong then, in words.
    """

    name: str
    module: str
    function: str
    old: str
    new: str
    about: str

    @property
    def target(self) -> str:
        """What it changes, in the form of :class:`tests.mutations.mutation.Mutation`."""
        return f"{self.module}:{self.function}"

    @property
    def file(self) -> Path:
        """The file of the module."""
        return file_of(self.module)

    def lines(self) -> range:
        """Return the numbers of the lines that it changes."""
        source = self.file.read_text()
        at = self._position(source)
        first = source.count("\n", 0, at) + 1
        return range(first, first + source.count("\n", at, at + len(self._in_place(source, self.old))) + 1)

    def mutated(self) -> str:
        """Return the source of the module with the defect."""
        source = self.file.read_text()
        at = self._position(source)
        old = self._in_place(source, self.old)
        return source[:at] + self._in_place(source, self.new) + source[at + len(old) :]

    def apply(self) -> None:
        """Put the defect into this process.

        Raises:
            TargetGone: There is no such code any more.
        """
        line = self.lines().start
        module = compile(self.mutated(), str(self.file), "exec", dont_inherit=True)
        code = max(
            (candidate for candidate in codes_of(module, self.function) if candidate.co_firstlineno <= line),
            key=lambda candidate: candidate.co_firstlineno,
            default=None,
        )
        if code is None:
            raise TargetGone(f"there is no code of {self.target}")
        functions = functions_at(import_module(f"{PACKAGE}.{self.module}"), self.function)
        for function in functions:
            if function.__code__.co_firstlineno == code.co_firstlineno:
                function.__code__ = code
                return
        raise TargetGone(f"{self.target} is not the function of its source")

    def _position(self, source: str) -> int:
        start, end = span_of(source, self.function, self.target)
        old = self._in_place(source, self.old)
        count = source.count(old, start, end)
        if count != 1:
            raise TargetGone(f"{self.name}: {self.target} has {count} times, and not once:\n{self.old}")
        return source.index(old, start, end)

    def _in_place(self, source: str, snippet: str) -> str:
        """Return a snippet with the indentation that it has in the source."""
        text = textwrap.dedent(snippet).strip("\n")
        start, end = span_of(source, self.function, self.target)
        first, *later_lines = textwrap.dedent(self.old).strip("\n").split("\n")
        for line in source[start:end].split("\n"):
            if first and first in line and (not later_lines or line.strip() == first.strip()):
                indent = line[: len(line) - len(line.lstrip())]
                head, *tail = text.split("\n")
                return "\n".join(
                    [head, *(indent + tail_line if tail_line else tail_line for tail_line in tail)]
                )
        raise TargetGone(f"{self.name}: {self.target} has no line with:\n{first}")


def file_of(module: str) -> Path:
    """Return the file of a module below ``flink_agents``.

    Raises:
        TargetGone: There is no such module.
    """
    try:
        spec = find_spec(f"{PACKAGE}.{module}")
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise TargetGone(f"there is no module {PACKAGE}.{module}")
    return Path(spec.origin)


@functools.cache
def functions_of(source: str) -> dict[str, tuple[int, int]]:
    """Return the functions and methods of a module with their first and last lines.

    A nested function belongs to the outer one, and a setter to its property.
    """

    def find_functions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, tuple[int, int]]]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + node.name, (node.lineno, node.end_lineno or node.lineno)
            elif isinstance(node, ast.ClassDef):
                yield from find_functions(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.If):
                yield from find_functions(node.body + node.orelse, prefix)

    functions: dict[str, tuple[int, int]] = {}
    for name, (first, last) in find_functions(ast.parse(source).body, ""):
        functions[name] = functions.get(name, (first,))[0], last
    return functions


def span_of(source: str, function: str, target: str) -> tuple[int, int]:
    """Return where a function begins and ends in the source, in characters."""
    lines = functions_of(source).get(function)
    if lines is None:
        raise TargetGone(f"there is no {target}")
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts[lines[0] - 1], starts[lines[1]]


def codes_of(code: CodeType, function: str) -> Iterator[CodeType]:
    """Yield the code objects of a function of a module; a property has one for each of its functions."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_qualname == function:
                yield constant
            elif function.startswith(f"{constant.co_qualname}."):
                yield from codes_of(constant, function)


def functions_at(module: ModuleType, path: str) -> Iterator[FunctionType]:
    """Yield the functions below a name as they were written, without their decorators."""
    target: Any = module
    for name in path.split("."):
        if name not in vars(target):
            raise TargetGone(f"there is no {module.__name__}:{path}")
        target = vars(target)[name]
    yield from unwrapped(target)


def unwrapped(found: Any) -> Iterator[FunctionType]:
    """Yield the functions inside of a property, a static method, or a decorator that names its function."""
    inner = [
        inner_object
        for name in ("__wrapped__", "__func__", "fget", "fset", "func")
        if (inner_object := getattr(found, name, None)) is not None
    ]
    if isinstance(found, FunctionType) and not inner:
        yield found
    for inner_object in inner:
        yield from unwrapped(inner_object)


PATCHES: dict[str, Patch] = {}


class Room:
    """Collects the patches of one package.

    Args:
        package: The package, below ``flink_agents``.
    """

    def __init__(self, package: str) -> None:
        self._package = package

    def __call__(self, name: str, function: str, old: str, new: str, about: str) -> None:
        """Add a patch; ``function`` is ``module:Class.function``, below the package."""
        module, _, path = function.partition(":")
        if name in PATCHES:
            raise ValueError(f"there are two patches {name}")
        PATCHES[name] = Patch(name, f"{self._package}.{module}", path, old, new, about)
