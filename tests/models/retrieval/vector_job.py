"""A separate job on a shared vector store: ``python vector_job.py FILE JOB INPUTS``.

It dies at each point and goes on, while another one does the same beside it, and prints what it found.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from flink_agents import (
    Agent,
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
from flink_agents.testing import OperatorHarness

FILE, JOB = sys.argv[1:3] if __name__ == "__main__" else ("", "")


class Clerk(Agent):
    """Keeps what it is told: as a document, as one that all jobs write, and in memory."""

    @embedding_model
    def words(self) -> ResourceDescriptor:
        return ResourceDescriptor(model="wordllama:l2_supercat_256", dimensions=64)

    @vector_store
    def docs(self) -> ResourceDescriptor:
        return ResourceDescriptor(path=FILE, embedding_model="words")

    @long_term_memory(name="long_term_memory")
    def memory(self) -> ResourceDescriptor:
        return ResourceDescriptor(vector_store="docs")

    @action(InputEvent)
    async def keep(self, event: InputEvent, ctx: RunnerContext) -> OutputEvent:
        docs = ctx.vector_store("docs")
        memory = ctx.long_term_memory(subject="tea")
        by = {"by": JOB}
        await docs.add([Document(f"{JOB} {event.input}", metadata=by)])
        await docs.add([Document(JOB, "shared", {"last": JOB})])
        removed_ids = await docs.add([Document("gone", metadata=by)])
        await docs.delete(removed_ids)
        await memory.add(f"{JOB} {event.input}")
        documents = await docs.query("tea", 1000, by)
        remembered = await memory.search("tea", 1000)
        return OutputEvent(
            output=[
                len(documents),
                len(remembered),
                {memory_item.text.split()[0] for memory_item in remembered},
            ]
        )


def main(inputs: str) -> None:
    config: dict[str, Any] = {"job-identifier": JOB}
    with OperatorHarness(Clerk(), lambda number: number % 3, config=config, crash="everywhere") as harness:
        harness.push_all(list(range(int(inputs))))
        print(json.dumps([[documents, items, *jobs] for documents, items, jobs in harness.outputs]))


if __name__ == "__main__":
    main(sys.argv[3])
