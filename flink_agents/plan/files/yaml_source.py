"""A YAML file with the lines of its entries, so that errors can name them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from flink_agents.api.common.places import short_path
from flink_agents.api.errors import PlanFormatError

Location = tuple[str | int, ...]
"""Keys and indexes that lead from the root to an entry."""


class YamlSource:
    """A parsed file.

    Args:
        path: The file.

    Attributes:
        name: Its path for error messages.
        value: Its content.

    Raises:
        PlanFormatError: The file cannot be read, is not YAML, or has a key twice.
    """

    def __init__(self, path: Path) -> None:
        self.name = short_path(str(path))
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise PlanFormatError(
                f"the file {self.name} cannot be read",
                expected="a YAML file of agents",
                found=str(error),
                fix="check the path",
            ) from error
        self._root, self.value = self._parse(text)

    def place(self, location: Location) -> str:
        """Return ``file:line`` of the entry at ``location``, or of the nearest entry that contains it."""
        node, line = self._root, 1
        for part in location:
            step = next((pair for pair in _children(node) if pair[0] == part), None)
            if step is None:
                break
            _, line, node = step
        return f"{self.name}:{line}"

    def _parse(self, text: str) -> tuple[yaml.Node | None, Any]:
        loader = None
        try:
            loader = yaml.SafeLoader(text)
            root = loader.get_single_node()
            if root is None:
                return None, None
            self._check_keys(root, set())
            return root, loader.construct_document(root)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            raise PlanFormatError(
                f"{self.name} is not YAML",
                expected="a YAML file of agents",
                found=getattr(error, "problem", None) or str(error),
                fix="correct the line",
                where=f"{self.name}:{mark.line + 1}" if mark else self.name,
            ) from error
        finally:
            if loader is not None:
                loader.dispose()

    def _check_keys(self, node: yaml.Node, done: set[int]) -> None:
        # An alias leads to a node that was seen already, or is still being visited.
        if id(node) in done:
            return
        done.add(id(node))
        seen: set[str | int] = set()
        for key, line, child in _children(node):
            if key in seen:
                raise PlanFormatError(
                    f"the key {key!r} appears twice",
                    expected="each key once",
                    fix="remove one",
                    where=f"{self.name}:{line}",
                )
            seen.add(key)
            self._check_keys(child, done)


def _children(node: yaml.Node | None) -> Iterator[tuple[str | int, int, yaml.Node]]:
    """Yield the key or index, the line and the node of each child of a node."""
    if isinstance(node, yaml.MappingNode):
        for key, child in node.value:
            yield str(key.value), key.start_mark.line + 1, child
    elif isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            yield index, child.start_mark.line + 1, child
