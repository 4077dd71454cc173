"""Finds the Java runtime and Kafka's jar files from Maven Central that a broker needs.

The package ``jgo`` resolves and downloads the jar files, from the repositories and into the caches
of its own settings (``~/.config/jgo.conf``, ``JGO_CACHE_DIR``, ``M2_REPO``). A list of the files is stored
next to its cache, so that only the first start needs the network.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

from flink_agents.api.common.installation import install_command
from flink_agents.api.errors import BrokerDownloadError, JavaNotFoundError, MissingExtraError
from flink_agents.connectors.maven import CHECK_NETWORK, download_artifact, lock_path
from flink_agents.runtime.flink.launch.jvm import find_java_home, java_fix, search_java

KAFKA_VERSION = "4.3.1"
"""The version of Apache Kafka."""

KAFKA = f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}"

LOGGING = "org.apache.logging.log4j:log4j-slf4j-impl"
"""Kafka's jars do not depend on it, and without it the broker logs nothing."""

OLDEST_JAVA = 17
"""Kafka 4 runs on no older Java."""

_DOWNLOADS = 8


def require_extra() -> None:
    """Check that the packages of the extra ``kafka`` are installed.

    Raises:
        MissingExtraError: One of them is missing.
    """
    missing = [name for name in ("jgo", "psutil") if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            "A Kafka broker needs packages that are not installed.",
            expected="the extra kafka",
            found=f"no package {', '.join(missing)}",
            fix=install_command("kafka"),
        )


def find_java() -> Path:
    """Return the home directory of a Java runtime that can run Kafka, where Flink would look for one.

    Raises:
        JavaNotFoundError: There is none that is new enough.
    """
    without_home = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    old_runtimes: list[str] = []
    for environ in (os.environ, without_home):
        runtime = search_java(environ).runtime
        if runtime is not None and runtime.version >= OLDEST_JAVA:
            return runtime.home
        if runtime is not None:
            old_runtimes.append(f"{runtime.home} is Java {runtime.version}")
    if not old_runtimes:
        return find_java_home().home
    raise JavaNotFoundError(
        "No Java runtime that Kafka can use was found.",
        expected=f"Java {OLDEST_JAVA} or 21",
        found="; ".join(dict.fromkeys(old_runtimes)),
        fix=java_fix(),
    )


def class_path() -> list[Path]:
    """Return the jar files of Kafka and its dependencies; download missing ones.

    Waits while another process downloads them.

    Raises:
        BrokerDownloadError: They cannot be downloaded.
    """
    from jgo.config import GlobalSettings

    settings = GlobalSettings.load()
    listing = Path(settings.cache_dir) / f"flink-agents-kafka-{KAFKA_VERSION}.json"
    if jars := _listed_files(listing):
        return jars
    try:
        with lock_path(listing.with_suffix(".lock")):
            jars = _listed_files(listing) or _fetch_jars(settings.repositories)
            replace_text(listing, json.dumps([str(jar) for jar in jars]))
    except Exception as error:
        # The resolver's exceptions are not documented: errors of HTTP, XML, files, and others.
        raise BrokerDownloadError(
            f"Kafka {KAFKA_VERSION} cannot be downloaded.",
            expected=f"{KAFKA} and its dependencies, from Maven Central or a repository in jgo's settings",
            found=f"{type(error).__name__}: {error}",
            fix=f"{CHECK_NETWORK}, or name a repository in ~/.config/jgo.conf; then try again",
        ) from error
    return jars


def _listed_files(listing: Path) -> list[Path]:
    """Return the jar files that an earlier start has listed; empty if the list or one of them is missing."""
    try:
        jars = [Path(path) for path in json.loads(listing.read_text(encoding="utf-8"))]
    except (OSError, ValueError):
        return []
    return jars if all(jar.is_file() for jar in jars) else []


def _fetch_jars(repositories: dict[str, str]) -> list[Path]:
    import jgo

    artifacts = list(jgo.resolve(KAFKA, repositories=repositories))
    coordinates = {(artifact.groupId, artifact.artifactId) for artifact in artifacts}
    version = next(artifact.version for artifact in artifacts if artifact.artifactId == "log4j-core")
    # Resolved separately: together with Kafka, its parent's list of versions would choose other clients.
    logging = jgo.resolve(f"{LOGGING}:{version}", repositories=repositories)
    artifacts += [
        artifact for artifact in logging if (artifact.groupId, artifact.artifactId) not in coordinates
    ]
    with ThreadPoolExecutor(_DOWNLOADS) as pool:
        return list(pool.map(download_artifact, artifacts))


def replace_text(path: Path, text: str) -> None:
    """Write a file atomically; only its owner can read it."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    new.replace(path)
