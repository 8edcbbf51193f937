"""YAML of settings: no tags of Python, no repeated keys, and aliases that cannot multiply.

The bounds are far above what settings need, and hold before anything is built: an alias counts as what it stands for
written out, and a merge (``<<``) as what it copies.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

import yaml

MAX_VALUES: Final = 100_000
MAX_DEPTH: Final = 64
_LONG: Final = 64
"""So many characters of a text count as one more value, so that aliases cannot multiply a long text either."""


class StrictLoader(yaml.SafeLoader):
    """A loader for ``yaml.load`` whose errors are all of ``yaml.YAMLError``."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = self._values = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        before = self._values
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _refused(event, f"more than {MAX_DEPTH} levels")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if not isinstance(event, yaml.AliasEvent):
            self._values += 1 + len(getattr(node, "value", "") if isinstance(event, yaml.ScalarEvent) else "") // _LONG
            self._sizes[id(node)] = self._values - before
        elif id(node) in self._sizes:
            self._values += self._sizes[id(node)]
        else:
            raise _refused(event, f"alias *{event.anchor} stands for what it is a part of")
        if self._values > MAX_VALUES:
            raise _refused(event, f"more than {MAX_VALUES} values, aliases written out")
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            text = str(getattr(key, "value", ""))
            if text in seen and text != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"key {text!r} occurs twice", key.start_mark)
            seen.add(text)
        return super().construct_mapping(node, deep)


def _refused(event: Any, fault: str) -> yaml.MarkedYAMLError:
    return yaml.composer.ComposerError(None, None, fault, event.start_mark)
