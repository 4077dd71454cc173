"""Shows a plan as text and as a Mermaid graph."""

from flink_agents.plan.show.mermaid import to_mermaid
from flink_agents.plan.show.text import to_text

__all__ = ["to_mermaid", "to_text"]
