"""The options of ``python -m tests.mutations --suite``, for its pytest process."""

from __future__ import annotations

import json
import os
from typing import NamedTuple

OPTIONS = "MUTATIONS_OF_THE_SUITE"
"""Environment variable with the options, as JSON."""


class Options(NamedTuple):
    """What to do.

    Attributes:
        names: The mutations; all if empty.
        jobs: How many processes run them.
        check: True to run the tests that ``kills.json`` names first, and to leave that file as it is.
        resume: True to skip mutations that were tried before, and to keep tests of ``kills.json`` that still
            find one.
        enough: Test functions after which a search ends.
        budget: Seconds for a mutation.
        tests: Files and directories of tests; all of the suite if empty.
    """

    names: list[str]
    jobs: int
    check: bool
    resume: bool
    enough: int
    budget: float
    tests: list[str]


def read_options() -> Options:
    """Return the options that the command passed."""
    return Options(**json.loads(os.environ[OPTIONS]))
