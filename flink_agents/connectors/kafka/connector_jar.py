"""Finds the jar file of Flink's Kafka connector: the given one, an existing one, or a download.

The connector has Kafka's client, but not the library for records compressed with zstd, so this module also
finds that. Flink itself has the libraries for snappy and lz4, and Java the one for gzip.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from flink_agents.api.common.installation import install_command
from flink_agents.api.common.logs import bounded_logger
from flink_agents.api.errors import KafkaConnectorError, MissingExtraError
from flink_agents.api.settings.options import KAFKA_JAR_VARIABLE
from flink_agents.connectors import maven

GROUP = "org.apache.flink"
ARTIFACT = "flink-sql-connector-kafka"
VERSION = "5.0.0-2.2"
"""The newest connector. There is none for Flink 2.3; this one was built for 2.2 and works."""

CONNECTOR = f"{GROUP}:{ARTIFACT}:{VERSION}"

FACTORY = "org.apache.flink.streaming.connectors.kafka.table.KafkaDynamicTableFactory"
"""The class by which Flink's tables find the connector."""

ZSTD = "com.github.luben:zstd-jni:1.5.6-10"
"""The library for zstd, in the version of Kafka's client in the connector."""

_log = bounded_logger("flink_agents.kafka")

_NEEDED = (FACTORY, "org.apache.flink.kafka.shaded.org.apache.kafka.clients.producer.KafkaProducer")


def connector_jar(jar: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the jar file of Flink's Kafka connector; download it if there is none.

    Args:
        jar: The file to use. Default: that of the variable ``FLINK_AGENTS_KAFKA_JAR``, else an existing one.
        environ: Environment variables.

    Raises:
        KafkaConnectorError: The file is not the connector, or the download failed.
        MissingExtraError: It has to be downloaded, and the extra ``kafka`` is not installed.
    """
    jar_path = present_jar(jar, environ)
    return jar_path if jar_path is not None else _download_jar()


def present_jar(jar: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the jar file of the connector if it exists; None if it has to be downloaded.

    Args:
        jar: The file to use. Default: that of the variable ``FLINK_AGENTS_KAFKA_JAR``, else an existing one.
        environ: Environment variables.

    Raises:
        KafkaConnectorError: The file is not the connector.
    """
    named = jar or environ.get(KAFKA_JAR_VARIABLE)
    if named:
        return _check_jar(Path(named))
    file = _in_repository(_local_repository(environ), CONNECTOR)
    return file if file.is_file() and not _missing_from(file) else None


def zstd_jar(jar: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the jar file of the library for zstd, downloaded if needed; None if that is not possible.

    Args:
        jar: The file of the connector, if the author names one. Then the library is beside it or in the local
            repository, and nothing is downloaded.
        environ: Environment variables.
    """
    named = jar or environ.get(KAFKA_JAR_VARIABLE)
    repository = _local_repository(environ)
    beside = sorted(Path(named).resolve().parent.glob("zstd-jni-*.jar")) if named else []
    for file in (*beside, _in_repository(repository, ZSTD)):
        if zipfile.is_zipfile(file):
            return file
    return None if named else _download_zstd(repository)


@cache
def _download_zstd(repository: Path) -> Path | None:
    """Download the library; if that fails, log it and return None, since most topics do not need it."""
    try:
        return maven.fetch_jar(ZSTD)
    except Exception as error:
        _log.warning(
            "topics compressed with zstd cannot be read: %s is not in %s: %s", ZSTD, repository, error
        )
        return None


def _in_repository(repository: Path, coordinates: str) -> Path:
    group, name, version = coordinates.split(":")
    return repository / group.replace(".", "/") / name / version / f"{name}-{version}.jar"


def _local_repository(environ: Mapping[str, str]) -> Path:
    """Return the directory in which Maven and jgo store downloads."""
    return Path(environ.get("M2_REPO") or Path.home() / ".m2" / "repository")


def _check_jar(file: Path) -> Path:
    if not file.is_file():
        raise _wrong_jar_error(file, "no such file")
    if missing := _missing_from(file):
        raise _wrong_jar_error(file, missing)
    return file.resolve()


def _missing_from(file: Path) -> str:
    """Return the reason why a file is not the connector; empty if it is."""
    if not zipfile.is_zipfile(file):
        return "not a jar file, or an incomplete one"
    with zipfile.ZipFile(file) as archive:
        names = set(archive.namelist())
    missing = [name for name in _NEEDED if f"{name.replace('.', '/')}.class" not in names]
    return f"no class {missing[0]}" if missing else ""


def _wrong_jar_error(file: Path, found: str) -> KafkaConnectorError:
    return KafkaConnectorError(
        f"the file {file} is not Flink's Kafka connector",
        expected=f"{ARTIFACT}-{VERSION}.jar, or another version of it, which brings a Kafka client",
        found=found,
        fix=f"correct jar= or {KAFKA_JAR_VARIABLE}, or remove both: then the file is downloaded once",
    )


def _download_jar() -> Path:
    if find_spec("jgo") is None:
        raise MissingExtraError(
            "Flink's Kafka connector has to be downloaded, which needs a package that is not installed.",
            expected="the extra kafka, or the file of the connector",
            found="no package jgo",
            fix=f"{install_command('kafka')}, or name the file in {KAFKA_JAR_VARIABLE}: {CONNECTOR}",
        )
    try:
        return maven.fetch_jar(CONNECTOR)
    except Exception as error:
        # The resolver's exceptions are not documented: errors of HTTP, XML, files, and others.
        raise KafkaConnectorError(
            "Flink's Kafka connector cannot be downloaded.",
            expected=f"{CONNECTOR} from Maven Central, or from a repository in jgo's settings",
            found=f"{type(error).__name__}: {error}",
            fix=f"{maven.CHECK_NETWORK}; or name a file from elsewhere in {KAFKA_JAR_VARIABLE}",
        ) from error
