"""Models that authors create, such as ``RetryPolicy(max_attempts=3)``: an error has their line.

Only a call of the class raises such an error. Inside a file or another model, it remains pydantic's error, to
which the reader of the file adds the place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from flink_agents.api.common.places import authors_place
from flink_agents.api.errors import WrongArgumentError
from flink_agents.api.errors.base import suggest

_T = TypeVar("_T")


class CheckedType(type):
    """Metaclass of classes whose calls raise errors with the author's line."""

    def __call__(cls: type[_T], *args: Any, **kwargs: Any) -> _T:
        """Create an instance.

        Raises:
            WrongArgumentError: An argument is unknown, missing or invalid.
        """
        try:
            return super().__call__(*args, **kwargs)
        except ValidationError as error:
            raise _invalid_field_error(cls, error) from None
        except TypeError as error:
            if not args:
                raise
            raise _positional_argument_error(cls, error) from None


if TYPE_CHECKING:
    # Type checkers read the arguments of a model from its fields only if it has pydantic's own metaclass.
    from pydantic._internal._model_construction import ModelMetaclass

    CheckedModelType = ModelMetaclass
else:

    class CheckedModelType(CheckedType, type(BaseModel)):
        """The same metaclass for pydantic models."""


def _field_names(cls: type) -> list[str]:
    return list(getattr(cls, "__pydantic_fields__", {}))


def _call_text(cls: type) -> str:
    """Return a call of the class with all its fields, without values, for error messages."""
    return f"{cls.__name__}({', '.join(f'{name}=...' for name in _field_names(cls))})"


def _invalid_field_error(cls: type, error: ValidationError) -> WrongArgumentError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(map(str, first["loc"]))
    problem = first["msg"].removeprefix("Value error, ")
    fix = f"correct {field!r}" if field else "correct the value"
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        problem = "unknown argument"
        fix = suggest(field, _field_names(cls), "remove it")
    elif first["type"] in ("missing", "missing_argument"):
        fix = f"write {cls.__name__}({field}=...)"
    return WrongArgumentError(
        f"{cls.__name__} got an invalid argument",
        expected=_call_text(cls),
        # No value: it may be a secret.
        found=f"{field}: {problem}" if field else problem,
        fix=fix,
        where=authors_place(),
    )


def _positional_argument_error(cls: type, error: TypeError) -> WrongArgumentError:
    names = _field_names(cls)
    return WrongArgumentError(
        f"{cls.__name__} accepts only keyword arguments",
        expected=_call_text(cls),
        found=str(error),
        fix=f"write {cls.__name__}({names[0]}=...)" if names else f"write {cls.__name__}()",
        where=authors_place(),
    )
