"""``python -m tests.mutations --suite``: starts pytest with the plugin that runs mutations."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

from flink_agents.api.settings.options import TEST_MODE_VARIABLE
from tests.mutations.suite.options import OPTIONS, Options
from tests.mutations.suite.plugin import defects
from tests.mutations.suite.reach import ROOT
from tests.suite.conditions import ROTATION

_OF_MODELS = (
    "engine/test_engine_free_names",
    "test_models_answers",
    "test_models_canary",
    "test_models_mcp_answers",
    "test_models_origins",
    "test_models_retry_after",
    "test_models_shortening",
    "test_models_unknown_outcomes",
)

SUITE = (
    "tests/runtime",
    "tests/test_standalone.py",
    *(f"tests/models/{name}.py" for name in _OF_MODELS),
)
"""Tests that run in the process in which a mutation is."""

LEFT_OUT = ("tests/runtime/programs", "tests/runtime/flink")
"""Tests that run in other processes, which do not see it."""

WITHIN = "not minicluster and not cluster and not nightly"


def run(options: argparse.Namespace) -> int:
    """Run the command; returns its exit status."""
    unknown = [name for name in options.names if name not in defects()]
    if unknown:
        print(f"there are no mutations {', '.join(unknown)}")
        return 2
    chosen = Options(
        options.names,
        options.jobs,
        options.check,
        options.resume,
        options.enough,
        options.budget,
        options.tests,
    )
    # The same conditions each time, whatever is checked out.
    environment = {**os.environ, ROTATION: "mutations", OPTIONS: json.dumps(chosen._asdict())}
    environment.pop(TEST_MODE_VARIABLE, None)
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "tests.mutations.suite.plugin", "-m", WITHIN]
    paths = [f"--ignore={path}" for path in LEFT_OUT] + [
        path for path in options.tests or SUITE if (ROOT / path).exists()
    ]
    # pytest has to be the first to import the package, so that it explains failed asserts of the test kit.
    command = [sys.executable, "-m", "pytest", *arguments, *paths]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
