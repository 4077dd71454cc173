"""Types as text, and back: ``list[int]``, ``shop:Order | None``, ``shop.pages:Page[shop:Order]``.

The text of a parametrized model has its generic class and its arguments, so that any process can create the
class again, whether or not it has been written there before.
"""

from __future__ import annotations

import ast
import builtins
import functools
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NoReturn, Union, get_args, get_origin

_NAMES: Mapping[str, Any] = {
    **{name: kind for name, kind in vars(builtins).items() if isinstance(kind, type)},
    **{"None": None, "...": ..., "Any": Any, "Literal": Literal, "Union": Union},
}
"""The names that need no module."""

_ALIASES = frozenset(name for name, alias in vars(typing).items() if get_origin(alias) is not None)
"""Names of generic types in ``typing``, each of which differs from the class that it stands for."""

_TOKEN = re.compile(r"\s*(b?'(?:[^'\\]|\\.)*'|b?\"(?:[^\"\\]|\\.)*\"|[\[\],|]|[^\s\[\],|'\"]+)")
_DEEPEST = 40
"""Maximum number of brackets inside each other."""

Find = Callable[[str], Any]
"""Returns the object with the name ``module:qualname``."""


class UnreadableTypeError(ValueError):
    """A text does not describe a type."""


def parameters_of(kind: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """Return the generic class and the arguments of a parametrized pydantic model; None for other types."""
    metadata = _generic_metadata(kind) if isinstance(kind, type) else None
    return (metadata["origin"], metadata["args"]) if metadata and metadata["origin"] is not None else None


def is_open(kind: type) -> bool:
    """Return True if a class is a generic pydantic model with type variables that are not replaced."""
    metadata = _generic_metadata(kind)
    return bool(metadata and metadata["parameters"])


def _generic_metadata(kind: type) -> Any:
    """Return the dict ``origin``, ``args``, ``parameters`` of a pydantic model; None for other classes."""
    return vars(kind).get("__pydantic_generic_metadata__")


def _is_generic(kind: type) -> bool:
    """Return True if ``Kind[...]`` is a type: for others, it runs code of the class's author."""
    is_standard = kind.__module__.partition(".")[0] in sys.stdlib_module_names
    return is_standard or is_open(kind) or bool(vars(kind).get("__parameters__"))


def write_type(kind: Any) -> str | None:
    """Return the text of a type; None if it has a part that no name describes, such as a constraint."""
    try:
        return _write_type(kind)
    except (LookupError, RecursionError):
        return None


def _write_type(kind: Any) -> str:
    """Return the text of a type; LookupError if it has a part that no name describes."""
    if kind is None or kind is type(None):
        return "None"
    if kind is ...:
        return "..."
    model = parameters_of(kind)
    if model is not None:
        return _with_arguments(_write_type(model[0]), map(_write_type, model[1]))
    origin = get_origin(kind)
    arguments = get_args(kind)
    if origin is None:
        return _name_type(kind)
    if isinstance(kind, types.UnionType):
        return " | ".join(map(_write_type, arguments))
    if origin is Literal:
        return _with_arguments("Literal", map(_write_literal, arguments))
    if origin is Union:
        return _with_arguments("Union", map(_write_type, arguments))
    if type(kind) is types.GenericAlias:
        return _with_arguments(_name_type(origin), map(_write_type, arguments))
    name = getattr(kind, "_name", None)
    if name in _ALIASES:
        if kind is getattr(typing, name):
            return f"typing:{name}"
        return _with_arguments(f"typing:{name}", map(_write_type, arguments))
    if isinstance(origin, type) and origin.__module__ not in ("typing", "builtins", "collections.abc"):
        # A generic dataclass, for example. Not Annotated, whose metadata have no names.
        return _with_arguments(_name_type(origin), map(_write_type, arguments))
    raise LookupError(kind)


def _with_arguments(name: str, arguments: Iterator[str]) -> str:
    return f"{name}[{', '.join(arguments)}]"


def _name_type(kind: Any) -> str:
    """Return the name of a type without arguments; LookupError if no name leads to it."""
    if kind is Any:
        return "Any"
    module = getattr(kind, "__module__", None)
    name = getattr(kind, "__qualname__", None)
    if not (isinstance(kind, type | typing.NewType) and module and name) or not _TOKEN.fullmatch(name):
        raise LookupError(kind)
    return name if _NAMES.get(name) is kind else f"{module}:{name}"


def _write_literal(value: object) -> str:
    if type(value) not in (str, int, bool, bytes, type(None)):
        raise LookupError(value)
    return repr(value)


def read_type(text: str, find: Find) -> Any:
    """Return the type that :func:`write_type` wrote as ``text``.

    An argument without a module is a built-in type, or of the module of the generic class.

    Args:
        text: The text of the type.
        find: Finds a class by its name. What it raises is passed on.

    Raises:
        UnreadableTypeError: The text does not have the form of a type, or its parts do not fit.
    """
    reader = _Reader(_TOKEN.findall(text), find)
    kind = reader.read_type("", 0)
    if reader.tokens or _TOKEN.sub("", text).strip():
        raise UnreadableTypeError("there is more than a type")
    return kind


class _Reader:
    """Reads a type from its tokens, from the left.

    Attributes:
        tokens: The tokens that are not read yet, the next one last.
    """

    def __init__(self, tokens: list[str], find: Find) -> None:
        self.tokens = tokens[::-1]
        self._find = find

    def read_type(self, home: str, depth: int) -> Any:
        """Read a type, or a union: several with bars between them.

        Args:
            home: Name of the module to which names without a module belong; empty if there is none.
            depth: The number of brackets that are open.

        Raises:
            UnreadableTypeError: The tokens do not have the form of a type, or its parts do not fit.
        """
        members = [self._read_member(home, depth)]
        while self._skip_token("|"):
            members.append(self._read_member(home, depth))
        union: Any = members[0]
        for member in members[1:]:
            union = self._join_union(union, member)
        return union

    def _join_union(self, first: Any, second: Any) -> Any:
        return self._try_type(lambda: first | second)

    def _read_member(self, home: str, depth: int) -> Any:
        """Read a type without bars: a name, perhaps with arguments in brackets."""
        if depth > _DEEPEST or not self.tokens:
            self._raise_unreadable()
        name = self.tokens.pop()
        module = name.partition(":")[0] if ":" in name else home
        kind: Any = self._find_object(name, module)
        if not self._skip_token("["):
            return kind
        if isinstance(kind, type) and not _is_generic(kind):
            # Its own subscription may do anything.
            raise UnreadableTypeError(f"{name} is not generic")
        read_type = functools.partial(self.read_type, module, depth + 1)
        read_argument = self._read_literal if kind is Literal else read_type
        arguments: list[Any] = []
        while not self._skip_token("]"):
            arguments.append(read_argument())
            if not self._skip_token(",") and self.tokens[-1:] != ["]"]:
                self._raise_unreadable()
        return self._apply_subscript(kind, arguments[0] if len(arguments) == 1 else tuple(arguments))

    def _apply_subscript(self, kind: Any, arguments: Any) -> Any:
        return self._try_type(lambda: kind[arguments])

    def _find_object(self, name: str, module: str) -> Any:
        if name in _NAMES:
            return _NAMES[name]
        if name.startswith("typing:"):
            alias = name.removeprefix("typing:")
            return getattr(typing, alias) if alias in _ALIASES else self._raise_unreadable()
        if not name.strip("[],|:'\""):
            self._raise_unreadable()
        return self._find(name if ":" in name or not module else f"{module}:{name}")

    def _read_literal(self) -> Any:
        try:
            return ast.literal_eval(self.tokens.pop())
        except (IndexError, SyntaxError, ValueError):
            self._raise_unreadable()

    def _skip_token(self, mark: str) -> bool:
        """Remove the next token if it is ``mark``; return True if it was."""
        if self.tokens[-1:] != [mark]:
            return False
        self.tokens.pop()
        return True

    def _try_type(self, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except Exception as error:  # The class may not be generic, or its author's code may raise anything.
            raise UnreadableTypeError(f"{type(error).__name__}: {error}") from error

    def _raise_unreadable(self) -> NoReturn:
        raise UnreadableTypeError("a name, a bracket or a comma is missing or unexpected")
