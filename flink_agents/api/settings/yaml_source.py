"""YAML with the lines of its entries, so that errors can name them, and with values as they are written.

YAML reads the unquoted texts ``off``, ``010``, ``12:30`` and ``2024-05-01`` as a bool, integers and a date.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml
from typing_extensions import override

Location = tuple[str | int, ...]
"""Keys and indexes that lead from the root to an entry."""

Leaf = tuple[tuple[str, ...], Any, str | None]
"""Keys as they are written, the value as JSON, and its text if it is an unquoted scalar."""

_PREFIX = "tag:yaml.org,2002:"

_TIME = re.compile(r"\d{4}-\d\d-\d\d([Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[-+]\d\d:\d\d)?)?")
"""The forms of dates and times in YAML that pydantic reads, too."""


class YamlProblem(ValueError):
    """A text is not YAML.

    Args:
        message: The problem, in words.
        line: Line of the problem, from 1; None if it is unknown.
    """

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


class RepeatedKey(YamlProblem):
    """A key appears twice: one value would replace the other.

    Args:
        key: Text of the repeated key.
        first: Line of its first place, from 1.
        line: Line of its second place.
    """

    def __init__(self, key: str, first: int, line: int) -> None:
        super().__init__(f"the key {key!r} appears twice", line)
        self.first = first
        self.line: int = line


class YamlSource:
    """A parsed YAML text, with the places of its entries.

    Args:
        text: The YAML text.
        first_line: Number of its first line, if it is a part of a file.

    Attributes:
        value: Its content, as ``yaml.safe_load`` returns it.

    Raises:
        RepeatedKey: A mapping has a key twice.
        YamlProblem: The text is not YAML.
    """

    def __init__(self, text: str, first_line: int = 1) -> None:
        self._first_line = first_line
        self._root, self.value = self._parse_text(text)

    def line(self, location: Location) -> int:
        """Return the line of the entry at ``location``, or of the nearest entry that contains it."""
        return self._find_node(location)[0] + self._first_line

    def written(self, location: Location) -> Any:
        """Return the value at ``location`` as JSON: dates and times as their texts, sets as lists.

        If there is no such entry, it is the value of the nearest entry that contains it.

        Raises:
            YamlProblem: JSON has no such value.
        """
        try:
            loader: Any = _Written("")
            return loader.construct_document(self._find_node(location)[1])
        except yaml.YAMLError as error:
            raise self._yaml_problem(error) from error

    def leaves(self) -> Iterator[Leaf]:
        """Yield the entries of all nested mappings, except those that are mappings themselves.

        Raises:
            YamlProblem: JSON has no such value.
        """
        try:
            yield from _walk_leaves(self._root, ())
        except yaml.YAMLError as error:
            raise self._yaml_problem(error) from error

    def _find_node(self, location: Location) -> tuple[int, yaml.Node | None]:
        """Return the line, from 0, and the node of the entry, or of the nearest entry that contains it."""
        line = 0
        node = self._root
        for key_or_index in location:
            children = {key: (child_line, child) for key, child_line, child in _child_nodes(node)}
            if key_or_index not in children:
                break
            line, node = children[key_or_index]
        return line, node

    def _parse_text(self, text: str) -> tuple[yaml.Node | None, Any]:
        """Return the root node of a YAML text, and its content; None and None if it is empty."""
        loader: Any = None
        try:
            loader = _Loader(text)
            root = loader.get_single_node()
            if root is None:
                return None, None
            self._check_keys(loader, root, set(), frozenset())
            return root, loader.construct_document(root)
        except YamlProblem:
            raise
        except (yaml.YAMLError, RecursionError) as error:
            raise self._yaml_problem(error) from error
        finally:
            if loader is not None:
                loader.dispose()

    def _yaml_problem(self, error: Exception) -> YamlProblem:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error) or type(error).__name__
        return YamlProblem(problem, mark.line + self._first_line if mark else None)

    def _check_keys(
        self, loader: Any, node: yaml.Node, checked_ids: set[int], parent_ids: frozenset[int]
    ) -> None:
        """Check a node and all nodes below it: keys differ, and no node contains itself.

        Args:
            loader: The loader of the text.
            node: The node to check.
            checked_ids: Ids of the nodes so far, to which this one is added: several aliases may name one.
            parent_ids: Ids of the nodes that contain it.

        Raises:
            YamlProblem: A key appears twice, or an alias leads into its own value.
        """
        if id(node) in parent_ids:
            line = node.start_mark.line + self._first_line
            raise YamlProblem("an alias names a value that contains it", line)
        if id(node) in checked_ids:
            return
        checked_ids.add(id(node))
        lines: dict[Any, int] = {}
        for key in [key for key, _ in node.value] if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode):
                self._check_key(loader, key, lines)
        for _, _, child in _child_nodes(node):
            self._check_keys(loader, child, checked_ids, parent_ids | {id(node)})

    def _check_key(self, loader: Any, key: yaml.ScalarNode, lines: dict[Any, int]) -> None:
        """Add the line of a key to ``lines``, by its text and by its value; RepeatedKey if it is there.

        Keys are equal if their texts or their values are, as ``yes`` and ``on``.
        """
        line = key.start_mark.line + self._first_line
        # The value of a merge key is its text.
        value = key.value if key.tag == f"{_PREFIX}merge" else loader.construct_object(key)
        for form in ((str, key.value), value):
            if form in lines:
                raise RepeatedKey(key.value, lines[form], line)
        lines[str, key.value] = line
        lines[value] = line


class _Loader(yaml.SafeLoader):
    """Names the line of a value that does not fit its type. A text such as 2024-13-01 is no date."""

    @override
    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            constructor: Any = super()
            return constructor.construct_object(node, deep)
        except (ValueError, LookupError) as error:
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from error

    def construct_time(self, node: Any) -> Any:
        try:
            return self.construct_yaml_timestamp(node)
        except ValueError:
            return node.value


class _Written(_Loader):
    """Constructs values of JSON from the nodes of another loader."""

    @override
    def construct_time(self, node: Any) -> str:
        value = super().construct_time(node)
        if isinstance(value, str) or _TIME.fullmatch(node.value):
            return node.value
        return value.isoformat()

    @override
    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        self.flatten_mapping(node)
        for key, _ in node.value:
            if key.tag == f"{_PREFIX}bool":
                # JSON would make the key `off` the text "false".
                key.tag = f"{_PREFIX}str"
        constructor: Any = super()
        return constructor.construct_mapping(node, deep)

    def construct_number(self, node: Any) -> Any:
        # Integers and numbers with a base of 60 are times.
        if ":" in node.value:
            return node.value
        is_float = node.tag == f"{_PREFIX}float"
        return self.construct_yaml_float(node) if is_float else self.construct_yaml_int(node)

    def construct_text(self, node: Any) -> str:
        content = self.construct_yaml_binary(node)
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise self._refusal_error(node, "bytes that are no text in UTF-8") from None

    def construct_list(self, node: Any) -> Any:
        values: list[Any] = []
        yield values
        values.extend(self.construct_object(key, deep=True) for key, _ in node.value)

    def refuse(self, node: Any) -> Any:
        raise self._refusal_error(node, f"a value of the type !!{node.tag.removeprefix(_PREFIX)}")

    def _refusal_error(self, node: Any, description: str) -> yaml.YAMLError:
        return yaml.constructor.ConstructorError(
            None, None, f"{description}, which JSON does not have", node.start_mark
        )


def _construct_time(loader: Any, node: Any) -> Any:
    return loader.construct_time(node)


_Loader.add_constructor(f"{_PREFIX}timestamp", _construct_time)
for _kind, _construct in {
    "int": _Written.construct_number,
    "float": _Written.construct_number,
    "binary": _Written.construct_text,
    "set": _Written.construct_list,
    "omap": _Written.refuse,
    "pairs": _Written.refuse,
}.items():
    _Written.add_constructor(f"{_PREFIX}{_kind}", _construct)


def _walk_leaves(node: yaml.Node | None, keys: tuple[str, ...]) -> Iterator[Leaf]:
    """Yield the leaves below a node, to which ``keys`` lead."""
    # A set is a mapping with another tag.
    if isinstance(node, yaml.MappingNode) and node.tag == _Loader.DEFAULT_MAPPING_TAG:
        for key, child in {key: child for key, _, child in _child_nodes(node)}.items():
            yield from _walk_leaves(child, (*keys, str(key)))
    elif node is not None:
        loader: Any = _Written("")
        is_text = False
        if isinstance(node, yaml.ScalarNode) and node.style is None and node.value:
            # A value with an explicit tag is no text.
            is_text = node.tag == loader.resolve(yaml.ScalarNode, node.value, (True, False))
        yield keys, loader.construct_document(node), node.value if is_text else None


def _child_nodes(node: yaml.Node | None) -> Iterator[tuple[str | int, int, yaml.Node]]:
    """Yield the key or index, the line from 0 and the node of each child of a node.

    After construction, values of merged mappings come first; those of the mapping itself replace them.
    """
    if isinstance(node, yaml.MappingNode):
        for key, child in node.value:
            yield str(key.value), key.start_mark.line, child
    elif isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            yield index, child.start_mark.line, child
