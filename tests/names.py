"""Checks the names of variables and functions, and that an assignment sets one variable.

``python -m tests.names`` counts assigned names per tree, and ``scripts/lint`` runs it. If a rate is over its
limit, each place is listed. ``docs/design/agents.md`` and ``AGENTS.md`` say how to choose a name.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]

VAGUE = frozenset(
    "one found own made given known kept left before each "
    "taken some other others rest gone told asked said begun".split()
)
"""Adjectives and pronouns, which need their noun: ``cached_rows`` for ``kept``, ``record`` for ``one``."""

VAGUE_PER_THOUSAND = {"flink_agents": 5.0, "tests": 15.0, "examples": 15.0, "benchmarks": 15.0}
"""How many of 1,000 assigned names may be vague. The best projects have 0 to 2."""

LONE = VAGUE | frozenset(
    "wait look leave take give drop make keep tell ask say put do did at of by with without behind beside "
    "below inside again here there all any several further instead early alone aside".split()
)
"""They do not say what a function does to what: ``collect_batch`` for ``take``, ``parse`` for ``of``."""

LONE_FUNCTIONS = frozenset(
    """
    api/agents/agent.py:ask api/common/identity.py:put api/context/tasks.py:wait api/errors/base.py:at
    api/models/retrieval.py:drop api/settings/options.py:below
    connectors/kafka/headers/mapping.py:all connectors/kafka/headers/mapping.py:of
    connectors/kafka/headers/mapping.py:without
    models/engine/approvals.py:wait models/retrieval/collection.py:drop models/retrieval/store_calls.py:drop
    runtime/flink/internals/task.py:put runtime/state/slots.py:put testing/fakes/state.py:put
    testing/vector_stores.py:make
    trace/reading.py:begun
    """.split()
)
"""Functions of the package with such a name: public ones, and those that a library or a protocol calls."""

TUPLES_PER_HUNDRED = 1.0
"""How many of 100 assignments may unpack a tuple that they build: ``a, b = x, y``."""


@dataclass
class Names:
    """The assigned names of a tree.

    Attributes:
        assigned: The number of assigned names.
        assignments: The number of assignments.
        vague: Each assigned name of :data:`VAGUE`, as ``file:line: name``.
        tuples: Each assignment that unpacks a tuple that it builds, as ``file:line``.
        functions: Each function with a name of :data:`LONE`, as ``file:line: name``.
    """

    assigned: int = 0
    assignments: int = 0
    vague: list[str] = field(default_factory=list[str])
    tuples: list[str] = field(default_factory=list[str])
    functions: list[str] = field(default_factory=list[str])

    def read(self, place: str, text: str) -> None:
        """Count the names of a module."""
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.assigned += 1
                if node.id in VAGUE:
                    self.vague.append(f"{place}:{node.lineno}: {node.id}")
            elif isinstance(node, ast.Assign):
                self.assignments += 1
                if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                    self.tuples.append(f"{place}:{node.lineno}")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.strip("_") in LONE:
                if f"{place.partition('/')[2]}:{node.name}" not in LONE_FUNCTIONS:
                    self.functions.append(f"{place}:{node.lineno}: {node.name}")

    def findings(self, tree: str, vague_per_thousand: float) -> Iterator[str]:
        """Yield the places of each rate that is over its limit."""
        if len(self.vague) * 1000 > vague_per_thousand * self.assigned:
            yield f"{tree}: {len(self.vague)} of {self.assigned} names are vague; say what they hold:"
            yield from self.vague
        if len(self.tuples) * 100 > TUPLES_PER_HUNDRED * self.assignments:
            yield f"{tree}: {len(self.tuples)} of {self.assignments} assignments build a tuple; split them:"
            yield from self.tuples

    def lone_functions(self) -> Iterator[str]:
        """Yield the functions that have a lone name."""
        if self.functions:
            yield f"{len(self.functions)} functions do not say what they do to what:"
            yield from self.functions


def read_tree(tree: str) -> Names:
    """Return the names that a folder of the project assigns."""
    names = Names()
    for path in sorted((ROOT / tree).rglob("*.py")):
        names.read(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    return names


def main() -> int:
    """Print each finding; return 1 if there is one."""
    findings = [
        finding
        for tree, limit in VAGUE_PER_THOUSAND.items()
        for finding in read_tree(tree).findings(tree, limit)
    ]
    findings += read_tree("flink_agents").lone_functions()
    print(*findings, sep="\n") if findings else print("names: nothing found")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
