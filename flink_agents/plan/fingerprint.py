"""The parts of a plan that recovery depends on, and their fingerprint.

It covers: format version, agent name and class, configuration, context class, side outputs, output type,
policies; of each action its name, triggers, function, conditions, policy and configuration; the classes of
the events that trigger actions; of each resource its name, type, function and descriptor.

It omits everything that you can change freely: the position and the body of code, source texts, ``def``
or ``async def``, ``on_suspend``, retries, timeouts and limits, emitted events, the
wording of prompts, descriptions and schemas of tools, and any order (of actions, triggers, resources and
mapping keys).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from flink_agents.api.settings import AgentSettings

_UNCOVERED = AgentSettings.model_fields.keys() - {"on_error", "on_unhandled"}
"""The settings of an agent that recovery does not depend on."""


def fingerprint(parts: Mapping[str, Any]) -> str:
    """Return 64 hexadecimal digits that identify the result of :func:`recovery_parts`."""
    covered = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(covered.encode("ascii")).hexdigest()


def recovery_parts(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a plan's JSON that recovery depends on, by name."""
    triggers = {
        kind for action in plan["actions"] for kind in (*action["trigger_classes"], *action["trigger_types"])
    }
    return {
        **{name: value for name, value in plan.items() if name not in _UNCOVERED},
        "events": {
            event["type"]: _reference(event["event_class"])
            for event in plan["events"]
            if event["type"] in triggers
        },
        "actions": {action["name"]: _action_parts(action) for action in plan["actions"]},
        "resources": {
            f"{resource['type']}:{resource['name']}": {
                name: resource[name] for name in ("function", "descriptor")
            }
            for resource in plan["resources"]
        },
    }


def _action_parts(action: Mapping[str, Any]) -> dict[str, Any]:
    when = action["when"]
    approved = action["needs_approval"]
    return {
        # Only if there is one: adding the setting to other actions changes nothing for them.
        **({"needs_approval": approved} if approved else {}),
        "trigger_classes": sorted(action["trigger_classes"]),
        "trigger_types": sorted(action["trigger_types"]),
        "function": _reference(action["function"]),
        "when": None if when is None else _reference(when["function"]),
        "on_error": action["on_error"],
        "config": action["config"],
    }


def _reference(reference: Mapping[str, str] | None) -> str | None:
    return None if reference is None else f"{reference['module']}:{reference['qualname']}"
