"""Lines with code of a file: without blanks, comments and docstrings."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_LAYOUT: Final = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_JAVA_COMMENT: Final = re.compile(r"\s*(//|/?\*|$)")


def code_lines_of_python(text: str, nodes: Iterable[ast.AST] | None = None) -> int:
    """Return the number of lines with code of a module; its *nodes* save parsing it again."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)) if nodes is None else nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def code_lines_of(path: Path) -> int:
    """Return the number of lines with code of a program in Python or Java, or of settings in YAML."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return code_lines_of_python(text)
    if path.suffix == ".java":
        return sum(not _JAVA_COMMENT.match(line) for line in text.splitlines())
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in text.splitlines())
