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
    """Return the local jar file of an artifact; download it if it is missing.

    Waits while another process downloads the same artifact: jgo writes into the final file, which others
    would consider complete.

    Args:
        coordinates: ``group:artifact:version``.

    Raises:
        Exception: The file cannot be downloaded. jgo documents no classes: errors of HTTP, XML and files.
    """
    import jgo
    from jgo.config import GlobalSettings

    group, name, version = coordinates.split(":")
    settings = GlobalSettings.load()
    with lock_path(Path(settings.cache_dir) / f"flink-agents-{name}-{version}.lock"):
        artifacts = jgo.resolve(coordinates, repositories=settings.repositories)
        matching_artifacts = (
            artifact
            for artifact in artifacts
            if (artifact.groupId, artifact.artifactId, artifact.version) == (group, name, version)
        )
        return download_artifact(next(matching_artifacts))


def download_artifact(artifact: Any) -> Path:
    """Download an artifact unless its file exists and is complete, and return the file.

    Args:
        artifact: An artifact that ``jgo.resolve`` returned.

    Raises:
        Exception: The last of three attempts failed.
        RuntimeError: Each attempt got a file that is no jar.
    """
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
    """Hold an exclusive lock on a file, which is created if needed; wait for other processes and threads."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
