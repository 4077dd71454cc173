"""No code of a worker starts a JVM."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from tests.suite.tables import each_case

WORKER = """
import sys
sys.modules["_pemja"] = sys  # as in a worker
import pemja
from unittest import mock
pemja.findClass = mock.MagicMock()
import pyflink.pyflink_gateway_server as server

def popen(*arguments, **options):
    print("A JVM STARTS")
    raise SystemExit(3)

server.Popen = popen
import pyflink.java_gateway
pyflink.java_gateway.launch_gateway_server_process = popen
from flink_agents.runtime.flink.shipping.main_module import MainModule
import pickle
pickle.loads(pickle.dumps(MainModule()))
from pyflink.common import *
from pyflink.common.time import *
from pyflink.common.watermark_strategy import *
from pyflink.datastream import *
from pyflink.datastream.state import *
from flink_agents.api.errors import UnsupportedExecutionError
from flink_agents.runtime.flink import compat
"""

WITHOUT_JAVA = [
    "Time.days(1)",
    "Time.milliseconds(1).to_milliseconds()",
    "Instant.of_epoch_milli(5).to_epoch_milli()",
    "Types.PICKLED_BYTE_ARRAY()",
    "Types.ROW_NAMED(['a'], [Types.STRING()]) == Types.ROW_NAMED(['a'], [Types.STRING()])",
    "Types.MAP(Types.STRING(), Types.LONG())",
    "Row(a=1).set_row_kind(RowKind.DELETE)",
    "OutputTag('late', Types.STRING())",
    "compat._state_ttl(1000).get_cleanup_strategies().get_rocksdb_compact_filter_cleanup_strategy()",
    "compat._state_ttl(1000).get_cleanup_strategies().get_incremental_cleanup_strategy()",
    "compat._state_ttl(1000)._to_proto()",
    "StateTtlConfig.new_builder(Time.days(1)).cleanup_in_rocksdb_compact_filter(5).build()",
    "MapStateDescriptor('m', Types.STRING(), Types.LONG()).enable_time_to_live(compat._state_ttl(5))",
]
WITH_JAVA = [
    *(f"Duration.of_{unit}(1)" for unit in ("days", "hours", "millis", "minutes", "nanos", "seconds")),
    "Configuration()",
    "Types.STRING().get_java_type_info()",
    "WatermarkStrategy.no_watermarks()._j_watermark_strategy",
    "StreamExecutionEnvironment.get_execution_environment()",
    "pyflink.java_gateway.get_gateway()",
]


def in_worker(calls: list[str]) -> list[str]:
    """Evaluate expressions in a process like a worker; return a line for each."""
    refused = "except UnsupportedExecutionError as error:\n    print(error.code)"
    lines = [f"try:\n    {call}\n    print('made')\n{refused}" for call in calls]
    done = subprocess.run(
        [sys.executable, "-c", WORKER + "\n".join(lines)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@each_case("calls, outcome", [(WITHOUT_JAVA, "made"), (WITH_JAVA, "FA2004")])
def test_a_worker_starts_no_jvm(calls: list[str], outcome: Any) -> None:
    outcomes = dict(zip(calls, in_worker(calls), strict=True))
    assert outcomes == dict.fromkeys(calls, outcome)
