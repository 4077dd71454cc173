"""Writes the JSON schemas of agent files and plans: ``python -m tests.schemas [FOLDER]``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from flink_agents.plan.files.yaml import AgentsFile
from flink_agents.plan.model import AgentPlan

FOLDER = Path(__file__).parents[1] / "flink_agents" / "plan" / "files"


def schemas() -> dict[str, str]:
    """Return the contents of the schema files, by file name."""
    return {
        "agents.schema.json": _text("Agents in YAML", AgentsFile.model_json_schema(by_alias=True)),
        "plan.schema.json": _text("Agent plan", AgentPlan.schema()),
    }


def write(folder: Path = FOLDER) -> list[Path]:
    """Write the schema files into ``folder``, and return their paths."""
    written: list[Path] = []
    for name, text in schemas().items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def _text(title: str, schema: dict[str, Any]) -> str:
    described = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": title}
    return json.dumps(described, indent=2) + "\n"


if __name__ == "__main__":
    for path in write(Path(sys.argv[1]) if sys.argv[1:] else FOLDER):
        print(path.name)
