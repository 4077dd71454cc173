"""The OpenTelemetry resource of an agent: the service that its spans and histograms belong to."""

from __future__ import annotations

from typing import Any

_SERVICE = "service.name"


def resource_of(agent: str, attributes: dict[str, str]) -> Any:
    """Return the OpenTelemetry resource of an agent.

    Its service has the agent's name, unless ``OTEL_SERVICE_NAME`` or ``OTEL_RESOURCE_ATTRIBUTES`` names
    another.

    Args:
        agent: Name of the agent.
        attributes: Further attributes of the resource.
    """
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    configured = OTELResourceDetector().detect().attributes.get(_SERVICE)
    return Resource.create({_SERVICE: configured or agent, **attributes})
