"""Packages that resources need, and the command that installs them."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from importlib.util import find_spec
from types import ModuleType

from flink_agents.api.common.installation import check_pydantic_ai, install_command
from flink_agents.api.errors import MissingExtraError

_OF_OPENAI = (
    "alibaba azure azure-responses cerebras crusoe deepseek fireworks github heroku litellm meta moonshotai "
    "nebius ollama openai openai-chat openai-responses ovhcloud sambanova snowflake together vercel vllm zai"
)

_NEEDED: dict[str, tuple[str, str]] = {
    **{provider: ("openai", "openai") for provider in _OF_OPENAI.split()},
    "anthropic": ("anthropic", "anthropic"),
    "bedrock": ("bedrock", "boto3"),
    "cohere": ("cohere", "cohere"),
    "google": ("google", "google.genai"),
    "google-cloud": ("google", "google.genai"),
    "groq": ("groq", "groq"),
    "huggingface": ("huggingface", "huggingface_hub"),
    "mistral": ("mistral", "mistralai"),
    "openrouter": ("openrouter", "openai"),
    "voyageai": ("voyageai", "voyageai"),
    "wordllama": ("wordllama", "wordllama"),
    "xai": ("xai", "xai_sdk"),
}
"""The extra of this package for each provider, and a module that it installs."""


def check_installed(provider: str, what: str) -> None:
    """Check that pydantic-ai is installed, with the packages for ``provider``.

    Args:
        provider: The part of a model's name before the colon; an unknown one needs only pydantic-ai.
        what: The resource that needs it in words, for the error.

    Raises:
        MissingExtraError: A package is missing.
    """
    extra, module = _NEEDED.get(provider, ("models", "pydantic_ai"))
    check_modules(("pydantic_ai", module), extra, what)


def check_modules(modules: Iterable[str], extra: str, what: str) -> None:
    """Check that modules are installed.

    Args:
        modules: Names of the modules.
        extra: The extra of this package that installs them.
        what: The resource that needs them in words, for the error.

    Raises:
        MissingExtraError: A module is missing, or pydantic-ai is too old.
    """
    for module in modules:
        if not _is_installed(module):
            raise missing_extra_error(extra, what, f"no module {module!r}")
    check_pydantic_ai()


def import_extra(module: str, extra: str, what: str) -> ModuleType:
    """Import and return a module that an extra of this package installs.

    Args:
        module: Name of the module.
        extra: Name of the extra.
        what: The resource that needs it in words, for the error.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing_extra_error(extra, what, f"{type(error).__name__}: {error}"[:300]) from error


def missing_extra_error(extra: str, what: str, found: str) -> MissingExtraError:
    """Return the error about missing packages of an extra.

    Args:
        extra: Name of the extra.
        what: The resource that needs it in words.
        found: What is missing, or the error of the import.
    """
    return MissingExtraError(
        f"{what} needs packages that are not installed",
        expected=f"the extra {extra!r} of flink-agents-python, in the workers of the cluster as well",
        found=found,
        fix=install_command(extra),
    )


def extra_of(provider: str) -> str:
    """Return the extra of this package with the packages for a provider of models; its name if unknown."""
    return _NEEDED.get(provider, (provider, ""))[0]


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        # The package that contains it is missing.
        return False
