"""Tests of the agent with the test kit."""

from shop import Order, Shop

from flink_agents import ChatModel, chat_model
from flink_agents.testing import OperatorHarness, Snapshot
from flink_agents.testing.models import ModelServer, Reply, ScriptedModel, ServedRequest, ToolCall

script = ScriptedModel([ToolCall("final_result", {"amount": 5, "reason": "late"}), Reply("yes")])


class Offline(Shop):
    @chat_model
    def analyst(self) -> ChatModel:
        return ChatModel(clazz=f"{__name__}:script")


def customer_of(order: Order) -> str:
    return order.customer


def test_a_refund() -> None:
    with OperatorHarness(Offline(limit=10), customer_of, crash="everywhere") as harness:
        harness.push(Order(customer="ada", text="late"))
        snapshot: Snapshot = harness.snapshot()
        harness.restore(snapshot)
        [request] = harness.approvals
        outputs = harness.approve(request, by="Ada")
        assert outputs == harness.outputs
    script.assert_complete()


def test_http() -> None:
    with ModelServer([Reply("hello")]) as server:
        requests: list[ServedRequest] = server.requests
        assert server.base_url and not requests
