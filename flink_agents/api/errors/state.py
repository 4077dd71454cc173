"""Exceptions about Flink's state and its values; see ``errors``."""

from __future__ import annotations

from typing import Any

from flink_agents.api.errors.base import AgentsError


class StateError(AgentsError):
    """A value cannot be written to Flink's state or read back from it."""

    code = "FA5000"


class KeyEncodingError(StateError):
    """A key has no canonical encoding, or the key selector failed for a record."""

    code = "FA5001"


class UnserializableValueError(StateError):
    """A value has a type that state cannot hold."""

    code = "FA5002"


class UnknownTypeNameError(StateError):
    """State has a value of a class that this program does not have."""

    code = "FA5003"


class StateFormatError(StateError):
    """State bytes are corrupt, or from a version that this package does not support."""

    code = "FA5004"


class PlanChangedError(StateError):
    """State was written by another plan of the agent, with which this plan is incompatible."""

    code = "FA5005"


class ValueChangedError(StateFormatError):
    """A stored value no longer fits its class.

    Attributes:
        type_name: The name of the class in state, ``module:Name``.
        fields: Names of the stored fields that the class no longer accepts, or now needs.
    """

    code = "FA5007"

    def __init__(
        self, message: str, *, type_name: str = "", fields: tuple[str, ...] = (), **kwargs: Any
    ) -> None:
        self.type_name = type_name
        self.fields = fields
        super().__init__(message, **kwargs)


class UpgradeFailedError(StateError):
    """A function of ``@upgrades`` raised, or returned nothing."""

    code = "FA5008"
