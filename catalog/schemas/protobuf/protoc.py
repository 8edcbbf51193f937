"""Compile .proto texts with protoc.

It runs in the sandbox, because it is C++ code that writes errors to standard error, and no text in a catalog may crash
the router. Results are cached per process.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

import grpc_tools  # type: ignore[import-untyped]

from catalog.schemas.contract import SchemaError, clip
from catalog.schemas.sandbox import COMPILE_MEMORY, COMPILE_SECONDS, LimitExceeded, compile_limited

INCLUDE: Final = Path(grpc_tools.__file__).parent / "_proto"
"""The folder of the files bundled with protoc: google/protobuf/*.proto."""
_TOKEN: Final = re.compile(
    r"""//[^\n]* | /\*(?:.*?\*/|.*)  # comments; one that is not closed takes the rest
    | \bimport\s+(?:(?:public|weak|option)\s+)?(?:"([^"\n]*)"|'([^'\n]*)')\s*;
    | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'""",
    re.VERBOSE | re.DOTALL,
)
_SYNTAX: Final = re.compile(r"\ufeff?(?>\s+|//[^\n]*|/\*.*?\*/)*+(?:syntax|edition)\s*=", re.DOTALL)
_PATH: Final = re.compile(r"(?:[\w+@-][\w.+@-]*/)*[\w+@-][\w.+@-]*\.proto", re.ASCII)
_MESSAGE: Final = re.compile(r"(?P<file>.+?):(?P<line>\d+):(?P<column>\d+): (?P<text>(?!warning:).*)")


def imports_of(text: str) -> tuple[str, ...]:
    """Return the distinct paths that a .proto text imports, without those bundled with protoc."""
    paths = (match[1] or match[2] for match in _TOKEN.finditer(text))
    return tuple(dict.fromkeys(path for path in paths if path and not is_shipped(path)))


def is_shipped(path: str) -> bool:
    """Whether the file is bundled with protoc."""
    return path.startswith("google/protobuf/") and ".." not in path and (INCLUDE / path).is_file()


def has_syntax(text: str) -> bool:
    """Whether a .proto text declares a syntax or edition; otherwise it counts as proto2."""
    return _SYNTAX.match(text) is not None


def is_path(path: str) -> bool:
    """Whether an import path is safe: relative, of letters, digits and ``_-+@.``, ending in .proto."""
    folders = path.split("/")[:-1]
    return (
        len(path) < 200 and _PATH.fullmatch(path) is not None and not any(each.endswith(".proto") for each in folders)
    )


def compile_files(main: str, files: Mapping[str, str], prefix: str = "") -> bytes:
    """Compile the file at path *main*, and return the serialised FileDescriptorSet with all its imports.

    Every import is in *files* or bundled with protoc. *prefix* is inserted at the start of the main file.

    Raises:
        SchemaError: protoc rejects a file, or exceeds its limits.
    """
    return _compile_cached(main, tuple(sorted(files.items())), prefix)


@lru_cache(maxsize=256)
def _compile_cached(main: str, files: tuple[tuple[str, str], ...], prefix: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="protoc-") as folder:
        root = Path(folder)
        for path, text in files:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            whole = prefix + text if path == main else text
            (root / path).write_text(whole, encoding="utf-8", errors="replace", newline="")
        try:
            code, errors = compile_limited(_run_protoc, folder, main, module="grpc_tools.protoc")
        except LimitExceeded:
            limits = f"{COMPILE_SECONDS:g} s and {COMPILE_MEMORY // 1024**2} MiB"
            message = f"compiling the .proto text takes protoc more than {limits}"
            raise SchemaError(message, hint="split it, or make it simpler") from None
        if code == 0:
            return (root / ".descriptors").read_bytes()
        raise _compile_error(main, len(prefix), errors)


def _run_protoc(folder: str, main: str) -> tuple[int, str]:
    """Compile a file of a folder; return protoc's exit code, and what it writes to standard error."""
    from grpc_tools import protoc

    outputs = ["--include_imports", f"--descriptor_set_out={folder}/.descriptors"]
    with tempfile.TemporaryFile() as errors:
        os.dup2(errors.fileno(), sys.stderr.fileno())
        code = protoc.main(["protoc", f"-I{folder}", f"-I{INCLUDE}", *outputs, f"{folder}/{main}"])
        errors.seek(0)
        return code, errors.read().decode("utf-8", "replace").replace(f"{folder}/", "")


def _compile_error(main: str, shift: int, errors: str) -> SchemaError:
    hint = "correct the .proto text; `protoc` says the same of it"
    for match in filter(None, map(_MESSAGE.match, errors.split("\n"))):
        is_main, column = match["file"] == main, int(match["column"])
        place = "" if is_main else f"{match['file']}, "
        column -= shift if is_main and match["line"] == "1" else 0
        return SchemaError(clip(f"{place}line {match['line']}, column {column}: {match['text']}"), hint=hint)
    lines = [line for line in errors.split("\n") if line.strip() and "warning:" not in line]
    return SchemaError(f"protoc refuses the .proto text: {clip(lines[0] if lines else 'it says nothing')}", hint=hint)
