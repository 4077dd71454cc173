"""Tests that share something expensive run in one worker."""

from __future__ import annotations

import pytest

CONFTEST = """
pytest_plugins = ["tests.suite.groups"]

import os
import pytest

@pytest.fixture(scope="session")
def flink_cluster():
    return os.getpid()

@pytest.fixture(autouse=True)
def told(request, tmp_path_factory):
    with open(request.config.rootpath / "told.txt", "a") as file:
        file.write(f"{os.environ.get('PYTEST_XDIST_WORKER')} {request.node.name}\\n")
"""

TESTS = """
import pytest

@pytest.mark.parametrize("at", range(3))
def test_NAME(at, FIXTURE): pass
"""


def test_tests_of_a_group_run_in_one_worker(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    shared = dict.fromkeys(("cluster_one", "cluster_two"), "flink_cluster")
    fixtures = {"alone": "tmp_path", **shared, "also": "tmp_path"}
    for name, fixture in fixtures.items():
        text = TESTS.replace("NAME", name).replace("FIXTURE", fixture)
        pytester.makepyfile(**{f"test_{name}": text})
    arguments = ("-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
    done = pytester.runpytest_subprocess(*arguments)
    done.assert_outcomes(passed=12)
    lines = (pytester.path / "told.txt").read_text().splitlines()
    for name in ("test_cluster", "test_alone", "test_also"):
        workers = {line.split()[0] for line in lines if name in line}
        assert len(workers) == 1, lines
    worker = next(line.split()[0] for line in lines if "test_cluster" in line)
    assert "test_cluster" in next(line for line in lines if line.startswith(worker))
