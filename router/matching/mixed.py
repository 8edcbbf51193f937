"""Placeholders that are but part of a segment, taken out of many values of one template at once.

RE2 does it, in time that grows with the texts alone. Like :meth:`catalog.templates.Template.match` it gives each
placeholder as few characters as let the rest match; a property test holds the two equal.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from catalog.templates import Placeholder, Template

FEW: Final = 16
"""Values for which compiling a pattern takes longer than a look at each."""


def captured(template: Template, name: str, values: pa.StringArray) -> pa.StringArray | None:
    """Return what the placeholder of that name takes from each value, as it is written; null where it does not fit.

    None for a template that must be asked value by value, since some name occurs in it again.
    """
    pattern = _pattern(template)
    if pattern is None:
        return None
    return pc.struct_field(pc.extract_regex(values, pattern), f"p{template.names.index(name)}")


@lru_cache(maxsize=4096)
def _pattern(template: Template) -> str | None:
    if len(set(template.names)) < len(template.names):
        return None
    ends = "/." if template.dots else "/"
    pieces: list[str] = []
    number = 0
    for part in template.parts:
        if isinstance(part, Placeholder):
            pieces.append(f"(?P<p{number}>[^{ends}]+?)")
            number += 1
        else:
            pieces.append(re.escape(part))
    return rf"\A{''.join(pieces)}\z"
