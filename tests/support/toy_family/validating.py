"""Holds bodies against a number of lines."""

from __future__ import annotations

from catalog.schemas.contract import Library, SchemaError, SchemaFault, SchemaSource, Validator


class LinesValidator(Validator):
    """Counts the lines of bodies."""

    def __init__(self, lines: int) -> None:
        self.lines = lines

    def find_faults(
        self, body: bytes | None, content_type: str | None, limit: int, *, at_any_cost: bool
    ) -> list[SchemaFault]:
        count = (body or b"").count(b"\n")
        return [] if count == self.lines else [SchemaFault("", f"{count} lines instead of {self.lines}")]


def compile_schema(source: SchemaSource, library: Library) -> LinesValidator:
    count = source.document.removesuffix(" lines")
    if not count.isdecimal():
        raise SchemaError(f"{source.document!r} is no number of lines", hint="write 3 lines")
    return LinesValidator(int(count))


def references_of(source: SchemaSource) -> tuple[str, ...]:
    return ()
