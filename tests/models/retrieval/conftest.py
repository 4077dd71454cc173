from __future__ import annotations

from collections.abc import Iterator

import pytest
from chroma_server import ChromaServer


@pytest.fixture(scope="session")
def chroma_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChromaServer]:
    server = ChromaServer(tmp_path_factory.mktemp("chroma"))
    server.start()
    yield server
    server.stop()
