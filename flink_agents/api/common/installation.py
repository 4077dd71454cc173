"""The commands that install extras of this package from where it came: a checkout, a wheel or an index.

And the check of the installed pydantic-ai, which another package of the environment may hold back.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from flink_agents.api.errors import MissingExtraError

DISTRIBUTION = "flink-agents-python"
"""Name of this package on a package index."""


LOWEST_PYDANTIC_AI = "2.68"
"""The oldest supported version of pydantic-ai, as major and minor number."""


def check_pydantic_ai() -> None:
    """Check that pydantic-ai, if it is installed, is new enough.

    Raises:
        MissingExtraError: It is older than :data:`LOWEST_PYDANTIC_AI`.
    """
    try:
        version = metadata.version("pydantic-ai-slim")
    except metadata.PackageNotFoundError:
        return
    if _version_numbers(version) < _version_numbers(LOWEST_PYDANTIC_AI):
        raise MissingExtraError(
            "the installed pydantic-ai is too old",
            expected=f"pydantic-ai-slim {LOWEST_PYDANTIC_AI} or later, in the workers of the cluster as well",
            found=f"pydantic-ai-slim {version}",
            fix=install_command("models"),
        )


def _version_numbers(version: str) -> tuple[int, ...]:
    """Return the major and minor number of a version, without parts that are no numbers."""
    return tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())


def install_command(*extras: str, options: str = "") -> str:
    """Return the pip command that installs this package again, with extras.

    Args:
        *extras: Names of extras, such as ``models``.
        options: Options of ``pip install``, as one string.
    """
    return " ".join(word for word in ("pip install", options, requirement(*extras)) if word)


def requirement(*extras: str) -> str:
    """Return this package with extras, as a quoted argument of pip.

    The package may be on no index, so the argument names the origin that pip recorded (PEP 610). Only an
    installation from an index has no such record.
    """
    suffix = f"[{','.join(extras)}]" if extras else ""
    origin = _install_origin()
    if origin is None:
        return f'"{DISTRIBUTION}{suffix}"'
    url, is_editable = origin
    if urlsplit(url).scheme != "file":
        return f'"{DISTRIBUTION}{suffix} @ {url}"'
    path = Path(unquote(urlsplit(url).path))
    if not path.exists():
        return f'"path/to/checkout{suffix}"'
    return f'{"-e " if is_editable else ""}"{path}{suffix}"'


@cache
def _install_origin() -> tuple[str, bool] | None:
    """Return the URL that this package was installed from, and if it is editable; None if an index has it."""
    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        # A checkout on PYTHONPATH.
        return Path(__file__).parents[3].as_uri(), False
    if text is None:
        return None
    record = json.loads(text)
    scheme = f"{record['vcs_info']['vcs']}+" if "vcs_info" in record else ""
    return f"{scheme}{record['url']}", bool(record.get("dir_info", {}).get("editable"))
