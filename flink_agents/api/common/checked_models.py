"""Models that authors write down, such as ``RetryPolicy(max_attempts=3)``: a slip in one has their line.

Only a call of the class is told so. What is read from a file, or inside another model, stays pydantic's
error, to which whoever reads it adds the place in the file.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from flink_agents.api.common.places import authors_place
from flink_agents.api.errors import WrongArgumentError
from flink_agents.api.errors.base import suggest


class CheckedType(type):
    """Class of classes whose calls are told so."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make an instance.

        Raises:
            WrongArgumentError: An argument is unknown, is missing or has a wrong value.
        """
        try:
            return super().__call__(*args, **kwargs)
        except ValidationError as error:
            raise _invalid(cls, error) from None
        except TypeError as error:
            if not args:
                raise
            raise _by_position(cls, error) from None


class CheckedModelType(CheckedType, type(BaseModel)):
    """The same for models of pydantic."""


def _fields_of(cls: type) -> list[str]:
    return list(getattr(cls, "__pydantic_fields__", {}))


def _invalid(cls: type, error: ValidationError) -> WrongArgumentError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    names, field = _fields_of(cls), ".".join(map(str, first["loc"]))
    problem = first["msg"].removeprefix("Value error, ")
    fix = f"correct {field!r}" if field else "correct what is wrong"
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        problem, fix = "there is no such argument", suggest(field, names, "leave it out")
    elif first["type"] in ("missing", "missing_argument"):
        fix = f"write {cls.__name__}({field}=...)"
    return WrongArgumentError(
        f"{cls.__name__} is given something that it does not take",
        expected=f"{cls.__name__}({', '.join(f'{name}=...' for name in names)})",
        # No value, which may be a secret.
        found=f"{field}: {problem}" if field else problem,
        fix=fix,
        where=authors_place(),
    )


def _by_position(cls: type, error: TypeError) -> WrongArgumentError:
    names = _fields_of(cls)
    return WrongArgumentError(
        f"{cls.__name__} takes its arguments by name",
        expected=f"{cls.__name__}({', '.join(f'{name}=...' for name in names)})",
        found=str(error),
        fix=f"write {cls.__name__}({names[0]}=...)" if names else f"write {cls.__name__}()",
        where=authors_place(),
    )
