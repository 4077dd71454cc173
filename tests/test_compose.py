"""``docker-compose.yml`` is what Compose takes, as far as that can be told without Docker."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from flink_agents.api.settings.options import AgentOptions, ConfigOption, Configuration
from flink_agents.api.settings.stores import check_store
from flink_agents.testing.kafka import KAFKA_VERSION
from tests.compose_on_host import COMPOSE, ROOT, read_compose

CONDITIONS = ("service_started", "service_healthy", "service_completed_successfully")


@pytest.fixture
def compose() -> dict[str, Any]:
    return read_compose()


def words(compose: dict[str, Any], service: str) -> list[str]:
    return compose["services"][service]["command"]


def test_the_file_is_what_compose_takes() -> None:
    """Against the schema of the Compose specification."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, str(COMPOSE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_named_is_there(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for name, service in services.items():
        for dependency, how in service.get("depends_on", {}).items():
            assert dependency in services, name
            assert how["condition"] in CONDITIONS
            assert how["condition"] != "service_healthy" or "healthcheck" in services[dependency], (
                f"{name}: {dependency}"
            )
        for volume in service["volumes"]:
            assert volume.split(":")[0] in compose["volumes"], name
        if "build" in service:
            context = COMPOSE.parent / service["build"]["context"]
            assert (context / service["build"]["dockerfile"]).is_file()


def test_the_image_has_the_files_that_it_copies(compose: dict[str, Any]) -> None:
    lines = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [line.split()[1:-1] for line in lines if line.startswith("COPY ")]
    missing = [name for names in copied for name in names if not (ROOT / name).exists()]
    assert copied and missing == []
    (job,) = [word for word in words(compose, "submit") if word.endswith(".py")]
    assert (ROOT / job).is_file()
    assert job.startswith("examples/") and ["examples"] in copied


def test_kafka_is_the_version_that_tests_run(compose: dict[str, Any]) -> None:
    assert compose["services"]["kafka"]["image"] == f"apache/kafka:{KAFKA_VERSION}"


def test_options_of_the_job_are_known(compose: dict[str, Any]) -> None:
    prefix = "-Dflink-agents."
    options = [word.removeprefix(prefix) for word in words(compose, "submit") if word.startswith(prefix)]
    values: dict[str | ConfigOption[Any], object] = {}
    for word in options:
        name, _, values[name] = word.partition("=")
    config = Configuration(values)
    assert config.get(AgentOptions.STORE) == "kafka"
    check_store("kafka", config.below("action-state.kafka"))
    brokers = config.below("action-state.kafka")["bootstrap-servers"]
    assert f"CLIENT://{brokers}" == compose["services"]["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert f"bootstrap-servers={brokers}" in words(compose, "journal")
