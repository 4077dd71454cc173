"""Answers questions from articles, offline. Run it with ``python examples/rag.py [DIRECTORY]``.

A first job puts articles into a vector store; a second one finds the article for each question, and
remembers the questions of each customer. Model and store need no network: the weights come with the wheel of
``wordllama``, and the store is a file in DIRECTORY. Each start is another submission of the job: a second one
with the same directory finds the questions from the first. Code composes the answer in place of a chat model.
"""

import sys
import tempfile
from collections.abc import AsyncIterator

from flink_agents import (
    Agent,
    AgentsExecutionEnvironment,
    InputEvent,
    OutputEvent,
    ResourceDescriptor,
    RunnerContext,
    action,
    embedding_model,
    long_term_memory,
    vector_store,
)
from flink_agents.api.vector_store import Document

ARTICLES = {
    "returns": "A parcel that arrived broken can be sent back within 30 days. We refund the money.",
    "password": "To reset a forgotten password, follow the link on the login page.",
    "shipping": "Shipping takes two days within the country and five days abroad.",
    "battery": "When the battery of the phone drains quickly, lower the brightness of the screen.",
}
QUESTIONS = [
    ("ada", "I forgot my login credentials"),
    ("bo", "When does my delivery come? I live abroad."),
    ("ada", "The delivery was damaged and I want a refund"),
    ("ada", "My login does not work again"),
]
RELEVANT = 0.3
"""What is less near than this is about something else."""


class Library(Agent):
    """Has the articles.

    Args:
        directory: Where the file of the store is.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory

    @embedding_model
    def words(self) -> ResourceDescriptor:
        return ResourceDescriptor(model="wordllama:l2_supercat_256")

    @vector_store
    def articles(self) -> ResourceDescriptor:
        return ResourceDescriptor(path=f"{self.directory}/articles.sqlite", embedding_model="words")


class Librarian(Library):
    """Adds articles; the same one once more takes the place of the first."""

    @action(InputEvent)
    async def add(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        name, text = event.input
        (added,) = await ctx.vector_store("articles").add([Document(text, id=name)])
        return OutputEvent(output=added)


class HelpDesk(Library):
    """Answers the questions of a customer, who is the key."""

    @long_term_memory(name="long_term_memory")
    def memory(self) -> ResourceDescriptor:
        return ResourceDescriptor(vector_store="articles")

    @action(InputEvent)
    async def answer(self, event: InputEvent, ctx: RunnerContext) -> AsyncIterator[OutputEvent]:
        customer, question = event.input
        memory = ctx.long_term_memory("questions")
        (article,) = await ctx.retrieve("articles", question, k=1)
        similar_facts = await memory.search(question, k=1)
        await memory.add(question, {"article": article.id})
        yield OutputEvent(output=f"{customer}: {article.text} [{article.id}]")
        if similar_facts and similar_facts[0].score is not None and similar_facts[0].score > RELEVANT:
            yield OutputEvent(output=f"{customer}: you asked before: {similar_facts[0].text}")


def run(agent: Agent, records: list[tuple[str, str]]) -> list[str]:
    """Let an agent handle records in a separate job."""
    with tempfile.TemporaryDirectory() as calls:
        config = {"job-identifier": "help-desk", "action-state.sqlite.path": f"{calls}/calls.sqlite"}
        env = AgentsExecutionEnvironment.get_execution_environment(config=config)
        outputs = env.from_list(records, key_selector=first).apply(agent).to_list()
        env.execute(type(agent).__name__)
        return list(outputs)


def first(record: tuple[str, str]) -> str:
    """The key of a record."""
    return record[0]


def main(directory: str) -> None:
    """Add the articles, and answer the questions."""
    added = run(Librarian(directory), list(ARTICLES.items()))
    print(f"{len(added)} articles: {', '.join(sorted(added))}")
    # Of one customer in order; those of several come as they are ready.
    print("\n".join(sorted(run(HelpDesk(directory), QUESTIONS), key=lambda line: line[:3])))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as temporary_folder:
            main(temporary_folder)
