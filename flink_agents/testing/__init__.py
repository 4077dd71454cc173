"""Test kit: drive an agent without a JVM, in milliseconds.

::

    from flink_agents.testing import OperatorHarness

    def test_greets():
        harness = OperatorHarness(Greeter())
        harness.push("Ada")
        assert harness.outputs == ["hello Ada"]
"""

from flink_agents.testing.harness import OperatorHarness, Snapshot

__all__ = ["OperatorHarness", "Snapshot"]
