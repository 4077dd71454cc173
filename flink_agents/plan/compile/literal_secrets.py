"""Finds literal secrets in the description of a resource: the plan, and each copy of it, would hold them.

A value is rejected because of its name (``api_key``, ``Authorization``, ``--token``), or because it looks
like a credential (``sk-...``, a private key, a password in a URL). Write a reference instead,
``{"env": "NAME"}`` or ``{"file": "PATH"}``. If a value is rejected by mistake, write it as
``{"public": "..."}``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from flink_agents.api.common.option_values import ConfigOption
from flink_agents.api.errors import LiteralSecretError
from flink_agents.api.resources import ResourceType
from flink_agents.api.settings.options import AgentOptions, Configuration
from flink_agents.plan.model import AgentPlan

RESOURCE_OPTIONS: dict[ResourceType, ConfigOption[dict[str, Any]]] = {
    ResourceType.CHAT_MODEL: AgentOptions.CHAT_MODELS,
    ResourceType.EMBEDDING_MODEL: AgentOptions.EMBEDDING_MODELS,
    ResourceType.SKILLS: AgentOptions.SKILLS,
    ResourceType.VECTOR_STORE: AgentOptions.VECTOR_STORES,
    ResourceType.MCP_SERVER: AgentOptions.MCP_SERVERS,
}
"""The options of a job that have entries for named resources, by their kind."""

REFERENCES = ({"env"}, {"file"}, {"public"})
"""Keys of references and of public values."""

_FREE = ("headers", "env", "environment", "args", "options", "settings", "arguments")
"""Fields that hold arbitrary arguments of a service, secrets among them."""

_PROSE = frozenset({"instructions", "description", "prompt", "router", "needs_approval", "tools", "skills"})
"""Fields that hold the user's prose and names."""

_KEYS = (
    "api|access|secret|secret_access|private|auth|account|subscription|functions?|service|encryption|signing"
)
_TOKENS = "access|auth|refresh|bearer|session|security|id|bot|api|user|personal|bearer|app|service"
_NAME = re.compile(
    rf"(?:^|_)(?:(?:{_KEYS}|master|license|shared|x)_?keys?|secrets?|passw(?:or)?d|passphrase|pwd|credentials?"
    rf"|authorization|bearer|cookie|connection_string|(?:{_TOKENS}|x)_?token)$"
    r"|^(?:token|auth|pat)$|(?:apikey|secret|password)$"
)
_LOOSE_NAME = re.compile(
    r"(?:^|_)(?:key|passwd|passphrase|pwd|pat|auth|signature|cookie|dsn)$"
    r"|(?:apikey|token|secret|password|credentials?|authorization)$"
)
"""Fields of headers and variables, whose names the service decides."""

_HARMLESS = re.compile(
    r"(?i)|true|false|none|null|yes|no|on|off|\d{1,5}|\$\{?\w+\}?|basic|bearer|oauth2?|\*+"
)
"""Values that are never secret, whatever their name is."""

_LOOKS = re.compile(
    r"""(?x)
    -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY
    | (?<![A-Za-z0-9]) (?:
        sk-(?=[\w-]*\d)[\w-]{16,} | (?:sk|rk|pk)_live_\w{8,} | gh[pousr]_\w{16,} | github_pat_\w{16,}
        | glpat-[\w-]{16,} | xox[abeprs]-[\w-]{10,} | (?:AKIA|ASIA)[0-9A-Z]{16} | AIza[\w-]{30,} | hf_\w{16,}
        | gsk_\w{16,} | xai-\w{16,} | pplx-\w{16,} | r8_\w{16,} | tvly-[\w-]{16,} | npm_\w{30,}
        | pypi-[\w-]{30,}
        | dop_v1_\w{30,} | shp(?:at|ss|ca)_\w{16,} | SG\.[\w-]{16,}\.[\w-]{16,} | ya29\.[\w-]{16,}
        | lsv2_(?:pt|sk)_\w{16,} | AGE-SECRET-KEY-\w{16,} | eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*
      )
    | (?i:\b(?:bearer|basic|token)[ ]+(?=[\w.~+/=-]*\d)[\w.~+/=-]{12,})
    """
)
_OPAQUE = re.compile(r"(?=[A-Za-z0-9]*[a-z])(?=[A-Za-z0-9]*[A-Z])(?=(?:[A-Za-z]*\d){3})[A-Za-z0-9]{20,}")
_HEXADECIMAL = re.compile(
    r"(?<![A-Za-z0-9])(?=[0-9a-fA-F]*\d)(?=[0-9]*[a-fA-F])[0-9a-fA-F]{32,}(?![A-Za-z0-9])"
)
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>]+")
_FLAG = re.compile(r"--?([A-Za-z][\w-]*)(?:=(.*))?", re.DOTALL)
_ASSIGNED = re.compile(r"([A-Za-z_][\w-]*)(?:=|:\s+)(.+)", re.DOTALL)

Found = tuple[str, str]
"""The place of a secret, and the reason why it counts as one."""


def check_secrets(what: str, arguments: Mapping[str, Any], where: str) -> None:
    """Reject a description that holds a secret.

    Args:
        what: The described resource, for the error.
        arguments: Its description, as JSON.
        where: The user's line.

    Raises:
        LiteralSecretError: It holds one. The error does not show the secret.
    """
    for place, why in literal_secrets(arguments):
        raise LiteralSecretError(
            f"the description of {what} holds a secret: {place} {why}",
            expected="a reference, so that the plan does not contain the secret",
            found=f"the secret itself in {place}",
            fix=_fix(place),
            where=where,
        )


def check_options(config: Configuration) -> None:
    """Reject job options that hold a secret: the job graph, and each copy of it, has all options.

    Args:
        config: The options.

    Raises:
        LiteralSecretError: An option holds a secret. The error does not show the secret.
    """
    for option in RESOURCE_OPTIONS.values():
        options: dict[str, Any] = {}
        for entry, value in config.below(option.key).items():
            name, *field = entry.split(".")
            _set_at_path(options, [name, *(part.replace("-", "_") for part in field[:1]), *field[1:]], value)
        for name, arguments in options.items():
            at = f"{option.key}.{name}"
            described = arguments
            if not isinstance(arguments, dict):
                # An environment variable's name combines resource and field: ANALYST_API_KEY.
                described = {"env": {name: arguments}}
            for place, why in literal_secrets(described):
                at = f"{at}.{place}" if described is arguments else at
                raise LiteralSecretError(
                    f"the option {at} holds a secret: it {why}",
                    expected="a reference, so that the job does not contain the secret",
                    found="the secret itself",
                    fix=_fix(place),
                )


def _set_at_path(into: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set a value at its path; replaces whatever is in the way and is not a dict."""
    *outer, last = path
    for part in outer:
        inner = into.get(part)
        if not isinstance(inner, dict):
            inner = into[part] = {}
        into = inner
    into[last] = dict(value) if isinstance(value, Mapping) else value


def check_plan(plan: AgentPlan) -> None:
    """Reject a plan that holds a secret anywhere.

    Args:
        plan: The loaded plan.

    Raises:
        LiteralSecretError: It holds one.
    """
    for resource in plan.resources:
        if resource.descriptor is not None:
            check_secrets(f"{resource.type.value} {resource.name!r}", resource.descriptor.arguments, "")


def literal_secrets(arguments: Mapping[str, Any]) -> Iterator[Found]:
    """Yield the place of each secret in a description, and the reason why it counts as one."""
    for field, value in arguments.items():
        if field in _PROSE:
            continue
        if field == "args" and isinstance(value, list | tuple):
            yield from _secrets_in_args(value)
        elif isinstance(value, str) and field not in _FREE:
            if (reason := _reason(value, field, loose=False, opaque=False)) is not None:
                yield field, reason
        else:
            is_loose = field in ("env", "environment") or field.endswith("headers")
            yield from _secrets_inside(value, field, is_loose)


def _secrets_inside(value: Any, place: str, loose: bool, name: str = "") -> Iterator[Found]:
    """Yield the secrets in a string, in a dict or a list, and in everything inside it."""
    if isinstance(value, str):
        if (reason := _reason(value, name, loose)) is not None:
            yield place, reason
    elif isinstance(value, Mapping) and not _is_reference(value):
        for key, member in value.items():
            is_loose = loose or str(key).endswith("headers")
            yield from _secrets_inside(member, f"{place}.{key}", is_loose, str(key))
    elif isinstance(value, list | tuple):
        for number, member in enumerate(value):
            yield from _secrets_inside(member, f"{place}[{number}]", loose)


def _secrets_in_args(args: Sequence[Any]) -> Iterator[Found]:
    """Yield the secrets among the command-line arguments of a program."""
    flag: str | None = None
    for number, argument in enumerate(args):
        previous_flag = flag
        flag = None
        if not isinstance(argument, str):
            continue
        match = _FLAG.fullmatch(argument) or _ASSIGNED.fullmatch(argument)
        name, value = match.groups() if match is not None else ("", argument)
        if previous_flag is not None and not argument.startswith("-") and not _is_harmless(argument):
            yield f"args[{number}]", f"is the value of {previous_flag}"
        elif value is None and _is_named(name, loose=True):
            flag = argument
        elif (reason := _reason(argument if value is None else value, name)) is not None:
            yield f"args[{number}]", reason


def _reason(text: str, name: str, loose: bool = True, opaque: bool = True) -> str | None:
    """Return the reason why a string counts as a secret; None if it is not one.

    Args:
        text: The string.
        name: Its name, or "".
        loose: True if the service decides about the name.
        opaque: True if long random characters count as a secret.
    """
    if _LOOKS.search(text) is not None:
        return "looks like one"
    if any(map(_has_credentials, _ADDRESS.findall(text))):
        return "is an address with credentials"
    if _is_named(name, loose) and not _is_harmless(text):
        return "is named like one"
    if opaque and (_OPAQUE.search(text) is not None or _HEXADECIMAL.search(text) is not None):
        return "looks like one"
    return None


def _has_credentials(address: str) -> bool:
    """Return True if an address has a user with a password, or a secret in its query."""
    try:
        parts = urlsplit(address)
        queried = parse_qsl(parts.query)
    except ValueError:
        return False
    user, _, _ = parts.netloc.rpartition("@")
    if user and not re.fullmatch(r"\$\{?\w+\}?", user):
        # A user name without a password may be a token; git@ and ssh:// name no user.
        return ":" in user or parts.scheme in ("http", "https", "ws", "wss")
    return any(_is_named(name, loose=True) and not _is_harmless(value) for name, value in queried)


def _is_reference(value: Any) -> bool:
    """Return True if a value names a secret, or is declared public; see the module."""
    return isinstance(value, Mapping) and set(value) in REFERENCES


def _is_named(name: str, loose: bool) -> bool:
    """Return True if a name indicates that its value is a secret."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    plain = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")
    return (_LOOSE_NAME if loose else _NAME).search(plain) is not None


def _is_harmless(value: str) -> bool:
    """Return True if a value is not a secret, whatever its name is: a switch, or the path of a file."""
    return _HARMLESS.fullmatch(value.strip()) is not None or value.startswith(("/", "./", "~/"))


def _fix(place: str) -> str:
    """Return the way to write a secret at a place as a reference."""
    reference = '{"env": "NAME"}, a variable of the worker, or {"file": "PATH"}'
    field = re.split(r"[.\[]", place, maxsplit=1)[0]
    if field in ("base_url", "url"):
        how = "remove it from the address, and pass it as api_key, auth or a header: "
        return f'{how}headers={{"Authorization": {{"env": "NAME"}}}}'
    if field not in (*_FREE, "api_key", "auth"):
        return f"let {field} name a variable or a file of the worker, and read that there"
    return f'write {place} = {reference}; if the value is public, {{"public": "..."}}'
