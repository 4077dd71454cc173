"""Fetches jar files from Maven Central, by the package ``jgo`` of the extra ``kafka``.

jgo resolves and downloads from the repositories and into the caches of its own settings
(``~/.config/jgo.conf``, ``JGO_CACHE_DIR``, ``M2_REPO``).
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

_TRIES = 3


def fetch(coordinates: str) -> Path:
    """Return the jar file of one artifact, ``group:artifact:version``; downloads it where it is missing.

    Raises:
        Exception: It cannot be fetched: errors of HTTP, of XML, of files, and plain ones.
    """
    import jgo
    from jgo.config import GlobalSettings

    group, name, version = coordinates.split(":")
    artifacts = jgo.resolve(coordinates, repositories=GlobalSettings.load().repositories)
    wanted = (
        one for one in artifacts if (one.groupId, one.artifactId, one.version) == (group, name, version)
    )
    return download(next(wanted))


def download(artifact: Any) -> Path:
    """Return the file of an artifact of jgo, which is complete."""
    for attempt in range(1, _TRIES + 1):
        try:
            jar = Path(artifact.resolve())
        except Exception:
            # jgo takes the rest of an interrupted download for the file.
            Path(artifact.cached_path).unlink(missing_ok=True)
            if attempt == _TRIES:
                raise
            continue
        if zipfile.is_zipfile(jar):
            return jar
        jar.unlink()
    raise RuntimeError(f"{artifact} is no jar file")
