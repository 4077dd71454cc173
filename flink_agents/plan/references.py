"""Converts code and types to names in a plan, and back."""

from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

from pydantic import BaseModel, ConfigDict

from flink_agents.api.durable.type_texts import UnreadableTypeError, parameters_of, read_type, write_type
from flink_agents.api.errors import FunctionReferenceError
from flink_agents.api.errors.base import suggest


class Frozen(BaseModel):
    """A part of a plan: it is immutable, and has exactly the fields of its format."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FunctionRef(Frozen):
    """The name of a function or class, from which it can be imported.

    Attributes:
        module: Its module.
        qualname: Its name in the module, with dots; of a parametrized model, with its arguments in brackets.
    """

    module: str
    qualname: str

    def __str__(self) -> str:
        return f"{self.module}:{self.qualname}"

    @classmethod
    def from_object(cls, target: Any) -> FunctionRef:
        """Return the reference to ``target``; an object without a name gets one in brackets."""
        if isinstance(target, functools.partial):
            inner = cls.from_object(target.func)
            return cls(module=inner.module, qualname=f"<partial>.{inner.qualname}")
        if inspect.ismethod(target) and not inspect.isclass(target.__self__):
            return cls(module=target.__module__, qualname=f"<bound>.{target.__qualname__}")
        if not hasattr(target, "__qualname__"):
            kind = type(target)
            return cls(module=kind.__module__, qualname=f"<instance>.{kind.__qualname__}")
        if parameters_of(target) is not None and (text := write_type(target)) is not None:
            return cls.parse(text)
        return cls(module=target.__module__ or "builtins", qualname=target.__qualname__)

    @classmethod
    def parse(cls, text: str) -> FunctionRef:
        """Parse a reference of the form ``module:qualname``.

        Raises:
            FunctionReferenceError: It does not have that form.
        """
        module, separator, qualname = text.partition(":")
        if not (separator and module and qualname) or "[" in module:
            raise FunctionReferenceError(
                f"{text!r} does not name a function",
                expected="module:qualname, for example shop.agents:OrderAgent",
                found=repr(text),
                fix="put a colon between the module and the name",
            )
        return cls(module=module, qualname=qualname)

    @property
    def importable(self) -> bool:
        """True if the name can be imported, as it is neither local nor anonymous."""
        return "<" not in self.qualname

    def resolve(self) -> Any:
        """Import the object that the reference names.

        Raises:
            FunctionReferenceError: The import fails; the message has the reason.
        """
        if not self.importable:
            raise FunctionReferenceError(
                f"{self} cannot be imported by name",
                expected="a function or class at the top of a module, or in a class there",
                found=self.qualname,
                fix="define it with a name at the top of a module; lambdas, local functions and partials "
                "work only if you pass the agent itself, not its plan",
            )
        if "[" in self.qualname:
            return type_from_text(str(self))
        try:
            module = importlib.import_module(self.module)
        except ImportError as error:
            missing = error.name if isinstance(error, ModuleNotFoundError) else self.module
            raise FunctionReferenceError(
                f"{self} cannot be imported",
                expected=f"a module {missing!r}",
                found=f"{type(error).__name__}: {error}",
                fix="install the module or put it on PYTHONPATH, here and on the workers",
            ) from error
        target: Any = module
        for name in self.qualname.split("."):
            if not hasattr(target, name):
                raise FunctionReferenceError(
                    f"{self} does not exist",
                    expected=f"{self.qualname!r} in {getattr(module, '__file__', None) or self.module}",
                    found=f"no {name!r} in {target.__name__}",
                    fix=suggest(name, dir(target), "restore the name, or compile again"),
                )
            target = getattr(target, name)
        return target


def import_named(text: str) -> Any:
    """Import the object that ``text`` names as ``module:qualname``.

    Raises:
        FunctionReferenceError: It does not have that form, or the import fails.
    """
    return FunctionRef.parse(text).resolve()


def type_text(declared: Any) -> str:
    """Return ``declared`` as a string: ``module:qualname`` of a class, a built-in's name, else its repr."""
    return write_type(declared) or repr(declared)


def type_from_text(text: str) -> Any:
    """Return the type for a string that :func:`type_text` made.

    Raises:
        FunctionReferenceError: A class cannot be imported, or the string is not a type.
    """
    try:
        return read_type(text, _resolve)
    except UnreadableTypeError as error:
        raise FunctionReferenceError(
            f"the type {text!r} cannot be read from a plan",
            expected="a built-in type or module:Class, also with arguments: module:Page[module:Order]",
            found=str(error),
            fix="use a class, for example a pydantic model with such a field",
        ) from None


def _resolve(name: str) -> Any:
    """Import a class for :func:`read_type`, which knows the built-in types itself."""
    if ":" not in name:
        raise UnreadableTypeError(f"there is no built-in type {name!r}")
    return import_named(name)
