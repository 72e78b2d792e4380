"""YAML in which a key stands once: PyYAML takes the last of two without a word, and a setting is lost."""

from typing import Any

import yaml  # type: ignore[import-untyped]  # PyYAML ships no types


class TwiceError(yaml.MarkedYAMLError):  # type: ignore[misc]  # PyYAML ships no types
    """A key stands twice in one mapping; the mark is that of the second."""

    def __init__(self, key: str, first: yaml.Mark, second: yaml.Mark) -> None:
        super().__init__(problem=f"the key '{key}' is given here and in line {first.line + 1}", problem_mark=second)
        self.key = key
        self.lines = (first.line + 1, second.line + 1)


class StrictLoader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML ships no types
    """PyYAML's safe loader that refuses a key which stands twice, at any depth."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        """PyYAML's, checked before merge keys (<<) are resolved: what a merged mapping holds may be overridden."""
        node = super().compose_mapping_node(anchor)
        seen: dict[tuple[str, str], yaml.Mark] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            if (key.tag, key.value) in seen:
                raise TwiceError(key.value, seen[key.tag, key.value], key.start_mark)
            seen[key.tag, key.value] = key.start_mark
        return node


def load_yaml(text: str) -> object:
    """The content of a YAML text, or one of PyYAML's errors; TwiceError is one of them."""
    return yaml.load(text, StrictLoader)
