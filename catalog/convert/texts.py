"""A document as the text of JSON or YAML, which any reader takes for the same tree."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import yaml

from catalog.errors import CatalogError
from catalog.escaping import is_harmless
from catalog.values import Written, plain_number

_WIDTH: Final = 110
_NUMBER_LIKE: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
"""Numbers of YAML 1.2 that PyYAML, which reads 1.1, does not take for numbers and so would not quote."""

_FASTEST: Final[Any] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def json_text(document: Mapping[str, Any]) -> str:
    """Return *document* as indented JSON.

    Raises:
        CatalogError: it holds a number that JSON cannot write.
    """
    try:
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = json.dumps(document, indent=2, allow_nan=False)  # a lone surrogate needs an escape
    except ValueError as error:
        raise CatalogError(f"the catalog holds a number that JSON cannot write: {error}") from error
    return text + "\n"


def yaml_text(document: Mapping[str, Any]) -> str:
    """Return *document* as YAML without aliases or tags, in the order of the document.

    Raises:
        CatalogError: it holds a text that is not Unicode (a lone surrogate), which YAML cannot write.
    """
    try:
        plain = json.dumps(document, ensure_ascii=False)
        plain.encode("utf-8")
    except UnicodeEncodeError as error:
        raise CatalogError(f"the catalog holds a text that YAML cannot write: {error}; convert it to JSON") from error
    # Marks that hide or turn text must be seen by whoever reviews the document, so they are written as escapes.
    shown = is_harmless(plain)
    text: str = yaml.dump(
        document, Dumper=_Dumper, sort_keys=False, allow_unicode=shown, width=_WIDTH, default_flow_style=False
    )
    return text


class _Dumper(_FASTEST):  # type: ignore[misc]  # which of the two base classes there is depends on the machine
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "'" if _NUMBER_LIKE.fullmatch(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _number(dumper: yaml.SafeDumper, number: Written) -> yaml.Node:
    return dumper.represent_data(plain_number(number))


_Dumper.add_representer(str, _text)
_Dumper.add_multi_representer(Written, _number)
