"""The analyst of ``review_analysis.py --model``: a language model instead of the word list.

Each request is a durable call: a snippet that was judged is not sent again, whatever fails later.
"""

from __future__ import annotations

from pydantic import BaseModel, Field
from review_agents import ReviewAnalysisAgent, ReviewScored

from flink_agents import ChatModel, InputEvent, ResourceDescriptor, RunnerContext, action, chat_model

INSTRUCTIONS = (
    "You judge snippets of product reviews. The score is -1 for a snippet that could not be more negative "
    "about the product, 1 for one that could not be more positive, and 0 for one that is neither."
)


class Judgement(BaseModel):
    """What the model thinks of a snippet."""

    score: float = Field(ge=-1, le=1)


class ModelReviewAnalysisAgent(ReviewAnalysisAgent):
    """Asks a model for the score of each snippet.

    Args:
        model: The model, as ``provider:name``.
        base_url: Address of its service; None for that of the provider.
    """

    def __init__(self, model: str, base_url: str | None = None) -> None:
        self.model = model
        self.base_url = base_url

    @chat_model
    def judge(self) -> ResourceDescriptor:
        return ChatModel(
            self.model,
            base_url=self.base_url,
            instructions=INSTRUCTIONS,
            max_concurrency=20,
            limits={"requests": 3},
        )

    @action(InputEvent)
    async def score(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, event: InputEvent, ctx: RunnerContext
    ) -> ReviewScored:
        result = await ctx.chat("judge", event.input.text, output_type=Judgement)
        return ReviewScored(review=event.input, score=result.output.score)
