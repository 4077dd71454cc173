"""Tests that share something expensive run in one worker."""

from __future__ import annotations

import re

import pytest

CONFTEST = """
pytest_plugins = ["tests.suite.groups"]

import os
import pytest

def pytest_configure(config):
    config.addinivalue_line("markers", "minicluster: x")
    config.addinivalue_line("markers", "cluster: x")

@pytest.fixture(scope="session")
def kafka_broker():
    return os.getpid()

@pytest.fixture(autouse=True)
def told(request, tmp_path_factory):
    with open(request.config.rootpath / "told.txt", "a") as file:
        file.write(f"{os.environ.get('PYTEST_XDIST_WORKER')} {request.node.name}\\n")
"""

TESTS = """
import time
import pytest

@pytest.mark.parametrize("at", range(3))
def test_alone(at): time.sleep(0.05)

@pytest.mark.parametrize("at", range(3))
def test_kafka(at, kafka_broker): pass

@pytest.mark.minicluster
@pytest.mark.parametrize("at", ["a@b", "c"])
def test_flink(at): pass
"""


def test_tests_of_a_group_run_in_one_worker(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_one=TESTS, test_two=TESTS)
    arguments = ("-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder")
    done = pytester.runpytest_subprocess(*arguments)
    done.assert_outcomes(passed=16)
    told = (pytester.path / "told.txt").read_text().splitlines()
    for name in ("test_kafka", "test_flink"):
        workers = {line.split()[0] for line in told if name in line}
        assert len(workers) == 1, told
    assert re.match(r"gw\d test_(kafka|flink)", told[0])


IDS = """
import pytest
from tests.suite.groups import id_of

def test_ids(request):
    assert id_of(request.node) == "test_ids.py::test_ids"

@pytest.mark.parametrize("at", ["a@b", "c"])
def test_with_at(at, request):
    assert id_of(request.node) == f"test_ids.py::test_with_at[{at}]"
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1", "--dist", "loadgroup")], ids=["one", "worker"])
def test_the_id_of_a_test_has_no_group(pytester: pytest.Pytester, workers: tuple[str, ...]) -> None:
    pytester.makeconftest('pytest_plugins = ["tests.suite.groups"]')
    pytester.makepyfile(test_ids=IDS)
    pytester.runpytest_subprocess("-p", "no:cacheprovider", *workers).assert_outcomes(passed=3)
