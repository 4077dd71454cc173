"""A process that writes a vector store ``sqlite``: ``python vector_writer.py FILE NAME COUNT``."""

from __future__ import annotations

import sys

from flink_agents.api.vector_store import Document, VectorSpace
from flink_agents.models.retrieval.sqlite.store import SQLiteVectorStore

SPACE = VectorSpace(2)


def main(path: str, name: str, count: str) -> None:
    store = SQLiteVectorStore({"path": path})
    for n in range(int(count)):
        store.add("c", SPACE, [Document("text", f"{name}{n}", {"n": n, "by": name}, (1.0, 0.0))])
        store.add("shared", SPACE, [Document(name, "one", {"n": n, "by": name}, (1.0, 0.0))])


if __name__ == "__main__":
    main(*sys.argv[1:])
