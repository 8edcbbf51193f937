"""Makes bodies of a number of lines."""

from __future__ import annotations

from catalog.schemas.contract import Library, SchemaSource
from catalog.schemas.filling import Chooser
from tests.support.toy_family.validating import compile_schema


class LinesFiller:
    """Writes a word a line."""

    def __init__(self, lines: int) -> None:
        self._lines = lines

    def payload(self, filling: Chooser, content_type: str) -> bytes:
        return "".join(f"{filling.make_word()}\n" for _ in range(self._lines)).encode()


def open_sampler(source: SchemaSource, library: Library) -> LinesFiller:
    return LinesFiller(compile_schema(source, library).lines)
