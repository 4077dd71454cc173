"""What other packages do when they are imported, and when the interpreter ends, is not the user's concern."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.suite.tables import each_case

pytestmark = pytest.mark.own_conditions

INSTALLED = "from flink_agents.runtime.flink.launch import gateway; gateway.prepare_jvms()"


@each_case(
    "statement",
    [
        f"{INSTALLED}; import pyflink.fn_execution as imported; assert imported.PYFLINK_CYTHON_ENABLED; "
        "import pyflink.fn_execution.beam.beam_worker_pool_service, pyflink.table",
        "from flink_agents.connectors.kafka import kafka_sink; import kafka",
        "from flink_agents.connectors.action_state.kafka.store import KafkaStore",
        "from flink_agents.testing.kafka import KafkaBroker; import kafka",
        "from flink_agents.trace.sinks.kafka_topic import KafkaTopic; import kafka",
    ],
)
def test_imports_work_if_warnings_are_errors(statement: str) -> None:
    done = run("-W", "error", "-c", statement)
    assert done.returncode == 0, done.stderr


def test_warnings_of_the_user_stay_errors() -> None:
    statement = (
        "from flink_agents.testing.kafka import KafkaBroker; import kafka, warnings; warnings.warn('mine')"
    )
    done = run("-W", "error", "-c", statement)
    assert done.returncode == 1 and "UserWarning: mine" in done.stderr


def test_the_worker_pool_stops_without_a_thread() -> None:
    """Python 3.12 starts none while the interpreter ends."""
    program = f"""
import atexit, threading
{INSTALLED}
from pyflink.fn_execution.beam.beam_worker_pool_service import BeamFnLoopbackWorkerPoolServicer

BeamFnLoopbackWorkerPoolServicer().start()

def reject(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")

# It is called before the functions that were registered earlier.
atexit.register(lambda: setattr(threading.Thread, "start", reject))
"""
    done = run("-c", program)
    assert done.returncode == 0 and "new thread" not in done.stderr


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
