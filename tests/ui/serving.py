"""A console that listens at a real port."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flink_agents.ui.app import make_app, make_index
from flink_agents.ui.outside import Outside
from flink_agents.ui.serving import make_server
from flink_agents.ui.settings import Access, ConsoleSettings


@contextmanager
def served(settings: ConsoleSettings) -> Iterator[str]:
    """Serve a console that has read its trace, and give its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        access = Access(port=listener.getsockname()[1])
        index = make_index(settings)
        index.refresh()
        app = make_app(settings, access, index, Outside(settings))
        server = make_server(app)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{access.port}"
        finally:
            server.should_exit = True
            thread.join()
