"""Models for tests: a scripted model, and a local server with OpenAI's interface.

In a pytest session, Pydantic AI rejects requests to real models. A test with the fixture
``model_server`` can send requests to that server.
"""

from typing import TYPE_CHECKING, Any

from flink_agents.testing.models.replies import Reply, ToolCall
from flink_agents.testing.models.server import ModelServer, ServedRequest

if TYPE_CHECKING:
    from flink_agents.testing.models.scripted import ScriptedModel

__all__ = ["ModelServer", "Reply", "ScriptedModel", "ServedRequest", "ToolCall"]


def __getattr__(name: str) -> Any:
    """Import ``ScriptedModel`` at first use, as it needs Pydantic AI; the server does not."""
    if name != "ScriptedModel":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from flink_agents.api.common.installation import check_pydantic_ai

    check_pydantic_ai()
    from flink_agents.testing.models.scripted import ScriptedModel

    return ScriptedModel
