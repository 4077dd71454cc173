"""Python imports this when it starts in a JVM of ours: see :mod:`flink_agents.runtime.flink.launch.beam`."""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

HERE = str(Path(__file__).parent)


def run_next() -> None:
    """Execute the module of this name that Python would have found without this directory."""
    remaining_path = [entry for entry in sys.path if entry != HERE]
    spec = PathFinder.find_spec("sitecustomize", remaining_path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


# Only in a JVM: Flink's other processes are started with arguments.
if getattr(sys, "orig_argv", [""]) in ([], [""]):
    from flink_agents.runtime.flink.launch.beam import leave_out_beam

    leave_out_beam()
run_next()
