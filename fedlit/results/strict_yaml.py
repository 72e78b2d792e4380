"""Strict YAML: no key twice in a mapping, and no document that aliases or nesting make far larger than its text.

PyYAML silently takes the last of two equal keys, and a setting is lost. It also accepts a few lines with aliases of
aliases, which a reader must follow through billions of values.
"""

from collections.abc import Iterable
from typing import Any

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types

DEEPEST = 100
"""Most levels of nested lists and mappings."""
MOST_REPEATED = 100_000
"""Most values that aliases may add."""


class TwiceError(yaml.MarkedYAMLError):  # type: ignore[misc]  # PyYAML ships no types
    """A key is given twice in one mapping; the mark is that of the second."""

    def __init__(self, key: str, first: yaml.Mark, second: yaml.Mark) -> None:
        super().__init__(problem=f"the key '{key}' is given here and in line {first.line + 1}", problem_mark=second)
        self.key = key
        self.lines = (first.line + 1, second.line + 1)


class TooLargeError(yaml.MarkedYAMLError):  # type: ignore[misc]  # PyYAML ships no types
    """A document is nested too deeply, or aliases make it too large; the mark is where that was seen."""


class StrictLoader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML ships no types
    """PyYAML's safe loader, which also refuses a key given twice, too much nesting, and aliases without end."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0
        self._sizes: dict[int, int] = {}  # id of a finished node -> number of its values, aliases followed
        self._repeated = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """PyYAML's method, which calls itself for inner nodes; stops as soon as the document is too large."""
        mark, is_alias = self.peek_event().start_mark, self.check_event(yaml.AliasEvent)
        self._depth += 1
        if self._depth > DEEPEST:
            raise TooLargeError(problem=f"there are more than {DEEPEST} levels here", problem_mark=mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias and id(node) not in self._sizes:
            raise TooLargeError(problem="a value is part of itself here", problem_mark=mark)
        if is_alias:
            self._repeated += self._sizes[id(node)]
        else:
            self._sizes[id(node)] = 1 + sum(self._sizes[id(part)] for part in parts_of(node))
        if self._repeated > MOST_REPEATED:
            raise TooLargeError(
                problem=f"aliases (*) repeat more than {MOST_REPEATED} values up to here", problem_mark=mark
            )
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        """PyYAML's method, with a check before merge keys (<<) are resolved: merged values may be overridden."""
        node = super().compose_mapping_node(anchor)
        seen: dict[tuple[str, str], yaml.Mark] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if (key.tag, key.value) in seen:
                raise TwiceError(key.value, seen[key.tag, key.value], key.start_mark)
            seen[key.tag, key.value] = key.start_mark
        return node


def parts_of(node: Any) -> Iterable[Any]:
    """The nodes inside a node: of a mapping, keys and values."""
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else ()


def load_yaml(text: str) -> object:
    """The content of a YAML text, or one of PyYAML's errors; TwiceError and TooLargeError are two of them."""
    try:
        return yaml.load(text, StrictLoader)
    except ValueError as error:  # a number of thousands of digits, the 99th of May
        raise yaml.YAMLError(str(error)) from error


def check_size(text: str) -> None:
    """TooLargeError for a text that another loader is about to read; other errors are left to that loader."""
    if "&" not in text and sum(map(text.count, "[{\n")) < DEEPEST:
        return  # neither aliases nor depth: most texts are one word
    try:
        yaml.compose(text, StrictLoader)
    except TooLargeError:
        raise
    except yaml.YAMLError:
        return
