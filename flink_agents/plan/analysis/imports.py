"""Finds the modules that the code of a function imports when it runs."""

from __future__ import annotations

import dis
import importlib.util
from collections.abc import Iterator
from types import CodeType

_IMPORT_NAME = dis.opmap["IMPORT_NAME"]
"""The opcode of an import. Every second byte of code is an opcode; ``dis`` reads them slowly."""


def imports_of(code: CodeType, package: str | None) -> Iterator[str]:
    """Yield the names of the modules that a code object imports, but not those of inner functions.

    Args:
        code: The code object.
        package: The package of its module, for relative imports.
    """
    if _IMPORT_NAME not in code.co_code[::2]:
        return
    level = 0
    for instruction in dis.get_instructions(code):
        if instruction.opname == "LOAD_CONST" and isinstance(instruction.argval, int):
            level = instruction.argval
        elif instruction.opname == "IMPORT_NAME" and (package or not level):
            yield importlib.util.resolve_name("." * level + instruction.argval, package)
