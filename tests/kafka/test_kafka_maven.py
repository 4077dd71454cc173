"""Files that are fetched from a repository of Maven: here a server of this test."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

FETCH = "import sys; from flink_agents.connectors.maven import fetch_jar; print(fetch_jar(sys.argv[1]))"

POM = b"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>shop</groupId><artifactId>till</artifactId><version>1.0</version></project>"""


def a_jar() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("Till.class", bytes(100_000))
    return file.getvalue()


@dataclass
class Repository:
    """Serves one artifact. It halts in the middle of its jar file until it may go on."""

    url: str = ""
    asked: Counter[str] = field(default_factory=Counter[str])
    halfway: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def repository() -> Iterator[Repository]:
    fake_repository, jar = Repository(), a_jar()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = {".pom": POM, ".jar": jar}.get(Path(self.path).suffix)
            fake_repository.asked[Path(self.path).name] += 1
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            if content is POM:
                self.wfile.write(POM)
            elif content is not None:
                self.wfile.write(content[:70_000])
                fake_repository.halfway.set()
                fake_repository.go_on.wait(60)
                self.wfile.write(content[70_000:])

        def do_HEAD(self) -> None:
            self.send_response(200 if Path(self.path).suffix in (".pom", ".jar") else 404)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        fake_repository.url = f"http://127.0.0.1:{server.server_address[1]}/"
        yield fake_repository
        fake_repository.go_on.set()
        server.shutdown()
        thread.join()


@pytest.mark.nightly
def test_two_processes_that_need_a_file_fetch_it_once(repository: Repository, tmp_path: Path) -> None:
    """The second one finds half a file where it looks, which it neither takes nor removes."""
    settings = tmp_path / ".config" / "jgo.conf"
    settings.parent.mkdir()
    settings.write_text(f"[repositories]\ncentral = {repository.url}\n")
    environ = os.environ | {
        "HOME": str(tmp_path),
        "M2_REPO": str(tmp_path / "m2"),
        "JGO_CACHE_DIR": str(tmp_path / "jgo"),
    }
    command = [sys.executable, "-c", FETCH, "shop:till:1.0"]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)

    with start() as first:
        assert repository.halfway.wait(60)
        with start() as second:
            with pytest.raises(subprocess.TimeoutExpired):
                second.wait(3)
            repository.go_on.set()
            printed = [process.communicate(timeout=60)[0].strip() for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0)
    assert printed[0] == printed[1]
    assert zipfile.is_zipfile(printed[0])
    assert repository.asked["till-1.0.jar"] == 1
