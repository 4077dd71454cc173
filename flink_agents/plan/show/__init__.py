"""Shows a plan: as text, as a Mermaid graph, as a picture."""

from flink_agents.plan.show.mermaid import to_mermaid
from flink_agents.plan.show.picture import to_svg
from flink_agents.plan.show.text import to_text

__all__ = ["to_mermaid", "to_svg", "to_text"]
