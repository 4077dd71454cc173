"""Java programs that prepare a broker's directory: its certificate, and the format of its storage."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from flink_agents.api.errors import BrokerStartError
from flink_agents.testing.kafka.process import error_lines

KEY_STORE = "broker.p12"
CERTIFICATE = "ca.pem"
PROPERTIES = "broker.properties"

_SECONDS = 120
_PASSWORD = "FLINK_AGENTS_STORE_PASSWORD"
# Options for a short run of Java.
_QUICK = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx128m"]


def make_certificate(java: Path, directory: Path, password: str) -> None:
    """Create the broker's key and its self-signed certificate in a directory, unless they exist."""
    certificate = directory / CERTIFICATE
    key_store = directory / KEY_STORE
    if certificate.exists() and key_store.exists():
        return
    key_store.unlink(missing_ok=True)
    certificate.unlink(missing_ok=True)
    keytool = [str(java / "bin" / "keytool"), *(f"-J{option}" for option in _QUICK)]
    common_options = ["-alias", "broker", "-keystore", KEY_STORE, "-storepass:env", _PASSWORD]
    subject = ["-dname", "CN=localhost", "-ext", "san=dns:localhost,ip:127.0.0.1", "-ext", "bc:c=ca:true"]
    key_options = ["-storetype", "PKCS12", "-keyalg", "EC", "-groupname", "secp256r1", "-validity", "3650"]
    environ = {**os.environ, _PASSWORD: password}
    _run_tool([*keytool, "-genkeypair", *common_options, *key_options, *subject], directory, environ)
    # Written last, so that its existence says that both are complete.
    _run_tool(
        [*keytool, "-exportcert", "-rfc", *common_options, "-file", f"{CERTIFICATE}.new"], directory, environ
    )
    (directory / f"{CERTIFICATE}.new").replace(certificate)


def format_storage(java: Path, jars: Sequence[Path], directory: Path, cluster: str) -> None:
    """Format the directory of records for a cluster id, unless that was done before."""
    if (directory / "data" / "meta.properties").exists():
        return
    program = [str(java / "bin" / "java"), *_QUICK, "-cp", join_jars(jars), "kafka.tools.StorageTool"]
    options = ["--cluster-id", cluster, "--config", PROPERTIES, "--ignore-formatted"]
    _run_tool([*program, "format", *options], directory, None)


def join_jars(jars: Sequence[Path]) -> str:
    """Return jar files as a class path of Java."""
    return os.pathsep.join(map(str, jars))


def _run_tool(command: list[str], directory: Path, environ: dict[str, str] | None) -> None:
    tool = Path(command[0]).name
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BrokerStartError(
            f"The directory of a Kafka broker cannot be prepared: {tool} could not run.",
            found=f"{type(error).__name__}: {error}",
            fix="use a complete Java runtime of version 17 or 21; see flink-agents doctor",
        ) from error
    if done.returncode != 0:
        raise BrokerStartError(
            f"The directory of a Kafka broker cannot be prepared: {tool} failed.",
            expected=f"settings that Kafka knows, and a directory of a broker: {directory}",
            found=f"exit code {done.returncode}, and this output:\n{error_lines(done.stdout)}",
            fix="fix the error; if you do not need its records, remove the directory",
        )
