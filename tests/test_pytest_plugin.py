"""The pytest plugin in suites of others: it does nothing until they use the test kit."""

from __future__ import annotations

import pytest

from tests.suite.tables import each_case

pytestmark = pytest.mark.own_conditions

FAKE_MODELS = {"__init__": "", "models": "ALLOW_MODEL_REQUESTS = True\n"}
AGENT = """
from flink_agents import Agent, InputEvent, OutputEvent, action

class Greeter(Agent):
    @action(InputEvent)
    def greet(self, event, ctx):
        return OutputEvent(output=event.input)
"""
IMPORT = "from pydantic_ai import models\n"
CHOOSE = IMPORT + "models.ALLOW_MODEL_REQUESTS = {}\n"
PATCH = (
    IMPORT
    + """
import pytest

@pytest.fixture(autouse=True)
def choose(monkeypatch):
    monkeypatch.setattr(models, "ALLOW_MODEL_REQUESTS", True)
"""
)
NOTHING = "pass"
HARNESS = "from flink_agents.testing import OperatorHarness; OperatorHarness(Greeter).close()"
FIXTURE = "request.getfixturevalue('agent_harness')(Greeter)"
LATE = f"{HARNESS}; from pydantic_ai import models"
IN_TEST = f"{HARNESS}; models.ALLOW_MODEL_REQUESTS = True; OperatorHarness(Greeter).close()"


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("FLINK_AGENTS_TEST_MODE", raising=False)
    package = pytester.mkpydir("pydantic_ai")
    for name, text in FAKE_MODELS.items():
        (package / f"{name}.py").write_text(text)
    return pytester


@pytest.mark.nightly
@each_case(
    "conftest, module, use, option, allowed",
    [
        ("", IMPORT, NOTHING, "", True),
        ("", IMPORT + AGENT, HARNESS, "", False),
        ("", IMPORT + AGENT, FIXTURE, "", False),
        ("", AGENT, LATE, "", False),
        (IMPORT, IMPORT + AGENT, HARNESS, "auto", False),
        (CHOOSE.format(False), IMPORT, NOTHING, "", False),
        (CHOOSE.format(True), IMPORT + AGENT, HARNESS, "", True),
        (CHOOSE.format(False), IMPORT + AGENT, HARNESS, "", False),
        (PATCH, IMPORT + AGENT, HARNESS, "", True),
        ("", IMPORT + AGENT, IN_TEST, "", True),
        ("", IMPORT, NOTHING, "block", False),
        (CHOOSE.format(True), IMPORT, NOTHING, "block", True),
        ("", IMPORT + AGENT, HARNESS, "allow", True),
    ],
)
def test_requests_are_rejected_only_where_the_kit_is_used(
    suite: pytest.Pytester, conftest: str, module: str, use: str, option: str, allowed: bool
) -> None:
    suite.makeconftest(conftest)
    suite.makeini(f"[pytest]\nflink_agents_model_requests = {option}\n" if option else "[pytest]\n")
    check = f"{use}; import sys; assert sys.modules['pydantic_ai.models'].ALLOW_MODEL_REQUESTS is {allowed}"
    suite.makepyfile(f"{module}\ndef test_it(request):\n    {check}\n")
    suite.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


def test_another_suite_loads_nothing_of_the_package(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import sys

        def test_it():
            assert not [name for name in sys.modules if name.partition(".")[0] in ("flink_agents", "pyflink")]
            print(f"\\n{len(sys.modules)} modules")
        """
    )
    arguments = ("-s", "-p", "no:cacheprovider", "--strict-markers", "-W", "error")
    with_plugin, without = (
        int(line.split()[0])
        for disabled in ((), ("-p", "no:flink_agents"))
        for line in suite.runpytest_subprocess(*arguments, *disabled).outlines
        if line.endswith(" modules")
    )
    assert with_plugin == without + 1


def test_a_wrong_option_is_an_error(suite: pytest.Pytester) -> None:
    suite.makeini("[pytest]\nflink_agents_model_requests = no\n")
    suite.makepyfile("def test_it(): pass")
    result = suite.runpytest_subprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*flink_agents_model_requests is 'no'; write auto, block or allow"])


def test_real_requests_are_rejected(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        f"""
        import pytest
        from pydantic_ai import models
        {AGENT.strip().replace(chr(10), chr(10) + " " * 8)}

        def test_none():
            models.check_allow_model_requests()

        def test_it(agent_harness):
            agent_harness(Greeter)
            with pytest.raises(RuntimeError, match="not allowed"):
                models.check_allow_model_requests()

        def test_a_server(model_server, agent_harness):
            agent_harness(Greeter)
            models.check_allow_model_requests()

        def test_again():
            with pytest.raises(RuntimeError, match="not allowed"):
                models.check_allow_model_requests()
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=4)


def test_a_block_allows_requests_of_its_harness(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        f"""
        import pytest
        from flink_agents.testing import OperatorHarness
        from flink_agents.testing.models.blocking import requests_allowed
        from pydantic_ai import models
        {AGENT.strip().replace(chr(10), chr(10) + " " * 8)}

        def test_the_first_use():
            with requests_allowed():
                OperatorHarness(Greeter).close()
                models.check_allow_model_requests()
            with pytest.raises(RuntimeError, match="not allowed"):
                models.check_allow_model_requests()
        """
    )
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
