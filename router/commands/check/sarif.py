"""Findings as SARIF 2.1.0 (OASIS), which code hosts and editors show beside the lines they are about."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from catalog.linting.rules import Rule, rules
from catalog.model import Finding, Severity

SARIF_VERSION: Final = "2.1.0"
SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS: Final[Mapping[Severity, str]] = {"error": "error", "warning": "warning", "info": "note"}


def sarif(
    findings: Iterable[Finding], lines: Mapping[tuple[str, str], int], folder: Path, *, exit_code: int
) -> dict[str, Any]:
    """Return one SARIF log with one run.

    The rules are those of the table, all of them. A result has the file (relative to *folder* when it is below it), the
    line when *lines* knows it by file and pointer, and the JSON pointer as its logical location. Its fingerprint is
    made of rule, pointer and message, so that it stays the same when lines move.
    """
    known = rules()
    numbers = {name: number for number, name in enumerate(known)}
    driver = {
        "name": "xrouter check",
        "semanticVersion": version("xregistry-router"),
        "rules": [_rule(rule) for rule in known.values()],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": exit_code != 2, "exitCode": exit_code}],
        "columnKind": "unicodeCodePoints",
        "results": [_result(finding, lines, folder, numbers) for finding in findings],
    }
    return {"$schema": SCHEMA, "version": SARIF_VERSION, "runs": [run]}


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.doc},
        "fullDescription": {"text": f"{rule.doc} {rule.why}"},
        "help": {"text": f"{rule.why} Basis: {rule.basis}."},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
        "properties": {"tags": [rule.family]},
    }


def _result(
    finding: Finding, lines: Mapping[tuple[str, str], int], folder: Path, numbers: Mapping[str, int]
) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": {"uri": artifact_uri(finding.file, folder)}}
    line = lines.get((finding.file, finding.pointer))
    if line is not None:
        physical["region"] = {"startLine": line}
    location: dict[str, Any] = {"physicalLocation": physical} if finding.file else {}
    if finding.pointer:
        location["logicalLocations"] = [{"fullyQualifiedName": finding.pointer, "kind": "member"}]
    mark = hashlib.sha256("\0".join((finding.rule, finding.pointer, finding.message)).encode()).hexdigest()[:32]
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.message}; {finding.hint}" if finding.hint else finding.message},
        "locations": [location] if location else [],
        "partialFingerprints": {"ruleAndPointer/v1": mark},
    }
    if finding.rule in numbers:
        result["ruleIndex"] = numbers[finding.rule]
    return result


def artifact_uri(file: str, folder: Path) -> str:
    """Return a file as URI reference: relative below *folder*, else absolute; a URL as it is."""
    if "://" in file:
        return file
    path = Path(file) if Path(file).is_absolute() else folder / file
    try:
        return quote(path.resolve().relative_to(folder.resolve()).as_posix())
    except ValueError:
        return path.resolve().as_uri()
