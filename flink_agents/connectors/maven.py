"""Downloads jar files from Maven Central with the package ``jgo`` of the extra ``kafka``.

jgo uses the repositories and caches of its own settings
(``~/.config/jgo.conf``, ``JGO_CACHE_DIR``, ``M2_REPO``).
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHECK_NETWORK = "check the network, its proxy, and its certificates (HTTPS_PROXY, REQUESTS_CA_BUNDLE)"
"""Fix for a failed download."""

_TRIES = 3


def fetch_jar(coordinates: str) -> Path:
    """Return the jar file of one artifact, ``group:artifact:version``; downloads it if it is missing.

    Only one process at a time does so, because jgo writes into the final file, which others would consider
    complete.

    Raises:
        Exception: It cannot be downloaded: errors of HTTP, of XML, of files, and plain ones.
    """
    import jgo
    from jgo.config import GlobalSettings

    group, name, version = coordinates.split(":")
    settings = GlobalSettings.load()
    with lock_path(Path(settings.cache_dir) / f"flink-agents-{name}-{version}.lock"):
        artifacts = jgo.resolve(coordinates, repositories=settings.repositories)
        wanted = (
            artifact
            for artifact in artifacts
            if (artifact.groupId, artifact.artifactId, artifact.version) == (group, name, version)
        )
        return download_artifact(next(wanted))


def download_artifact(artifact: Any) -> Path:
    """Return the complete file of a jgo artifact."""
    for attempt in range(1, _TRIES + 1):
        try:
            jar = Path(artifact.resolve())
        except Exception:
            # jgo considers the rest of an interrupted download a complete file.
            Path(artifact.cached_path).unlink(missing_ok=True)
            if attempt == _TRIES:
                raise
            continue
        if zipfile.is_zipfile(jar):
            return jar
        jar.unlink()
    raise RuntimeError(f"{artifact} is not a jar file")


@contextmanager
def lock_path(path: Path) -> Iterator[None]:
    """Let one process or thread enter at a time; the others wait."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
