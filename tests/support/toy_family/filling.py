"""Makes bodies of a number of lines."""

from __future__ import annotations

from catalog.schemas.contract import Library, SchemaSource
from catalog.schemas.filling import Filling
from tests.support.toy_family.validating import compile_schema


class LinesFiller:
    """Writes a word a line."""

    def __init__(self, lines: int) -> None:
        self._lines = lines

    def payload(self, filling: Filling, content_type: str) -> bytes:
        return "".join(f"{filling.make_word()}\n" for _ in range(self._lines)).encode()


def open_filler(source: SchemaSource, library: Library) -> LinesFiller:
    return LinesFiller(compile_schema(source, library).lines)
