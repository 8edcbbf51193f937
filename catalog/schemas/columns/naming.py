"""Names of columns: what Parquet and Delta forbid is escaped, and names that readers would take for one are kept apart.

``{"unit price": …}`` becomes the column ``unit_20price``; beside ``Id`` a member ``id`` becomes ``id_2``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_FORBIDDEN: Final = re.compile(r"[ ,;{}()=\x00-\x1f\x7f]")


def column_names(names: Sequence[str]) -> list[str]:
    """Return one column name for each of *names*, all different without regard to letter case.

    Names that need no change keep it whatever stands before them; of those that collide the first is kept.
    """
    escaped = [_FORBIDDEN.sub(lambda match: f"_{ord(match[0]):02X}", name) or "_" for name in names]
    chosen: dict[int, str] = {}
    taken: set[str] = set()
    waiting = []
    for at, (name, column) in enumerate(zip(names, escaped, strict=True)):
        if name == column and column.casefold() not in taken:
            chosen[at] = column
            taken.add(column.casefold())
        else:
            waiting.append(at)
    for at in waiting:
        chosen[at] = _free(escaped[at], taken)
        taken.add(chosen[at].casefold())
    return [chosen[at] for at in range(len(names))]


def _free(column: str, taken: set[str]) -> str:
    number, free = 1, column
    while free.casefold() in taken:
        number += 1
        free = f"{column}_{number}"
    return free
