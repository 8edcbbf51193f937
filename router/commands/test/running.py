"""Cases run: each record judged, what came of it compared, and a reason in words for what is not as expected."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from router.commands.test.cases import Case, CaseFile
from router.commands.test.comparing import Difference, differences
from router.commands.test.judging import Judged, Judging
from router.matching.checks import Check
from router.matching.conformance import DATA
from router.matching.matcher import Matcher, Outcomes


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one case; it passed when there are no differences. ``why`` explains what differs, if it can."""

    file: CaseFile
    case: Case
    differences: tuple[Difference, ...] = ()
    why: str = ""
    outcome: Mapping[str, Any] | None = None

    @property
    def passed(self) -> bool:
        """Whether all that is expected is so."""
        return not self.differences


@dataclass(frozen=True, slots=True)
class Run:
    """The results of cases in their order, what was judged for them, and how many seconds that took."""

    results: tuple[Result, ...]
    judged: Judged
    seconds: float


def run_cases(files: Iterable[CaseFile], judging: Judging) -> Run:
    """Run the cases of files that are of one catalog."""
    cases = [(file, case) for file in files for case in file.cases]
    started = time.perf_counter()
    judged = judging.judge([case.record for _, case in cases])
    mismatches = [
        tuple(differences(case.expect, outcome, f"{case.pointer}/expect"))
        for (_, case), outcome in zip(cases, judged.outcomes, strict=True)
    ]
    seconds = time.perf_counter() - started
    results = tuple(
        Result(file, case, wrong, _why(judging.matcher, judged, number, case) if wrong else "", judged.outcomes[number])
        for number, ((file, case), wrong) in enumerate(zip(cases, mismatches, strict=True))
    )
    return Run(results, judged, seconds)


def _why(matcher: Matcher, judged: Judged, number: int, case: Case) -> str:
    """Return what kept the record from the definition that should have taken it, else from the nearest one."""
    outcome = judged.outcomes[number]
    if outcome["outcome"] == "batch":
        return "the record is a batch of events; expect them under events"
    wanted = case.expect.get("message")
    elsewhere = wanted is not None and outcome.get("message") != wanted
    for outcomes, row in judged.rows.get(number, ()) if elsewhere else ():
        cause = _kept_from(matcher, outcomes, row, str(wanted))
        if cause:
            return f"{cause}{_reason(outcome)}"
    if elsewhere and outcome["outcome"] == "routed":
        return f"{wanted} matches as well, and {outcome['message']} goes before it: by its literals, or by a schema"
    nearest = outcome.get("nearest") or ()
    near = next((each for each in nearest if each["message"] == wanted), next(iter(nearest), None))
    if near is not None and near["mismatches"]:
        first = near["mismatches"][0]
        return _mismatch(near["message"], first["property"], first["expected"], first["found"])
    return _reason(outcome).removeprefix("; ")


def _kept_from(matcher: Matcher, outcomes: Outcomes, row: int, xid: str) -> str:
    """Return the first property that a definition asks for and this record does not have; empty if it has all."""
    facts = outcomes.facts
    channel = int(facts.channels[row])
    candidates = matcher.channels[channel].candidates if channel >= 0 else ()
    numbers = [number for number in candidates if matcher.targets[number].xid == xid]
    if not numbers:
        return f"{xid} is no candidate {_where(matcher, channel)}"
    row_facts = matcher.row(facts, row, matcher.index.classify(facts.columns))
    failed = [_failed(matcher.nearest.checks(number, row_facts)) for number in numbers]
    nearest = min(failed, key=len)
    if not nearest:
        return ""
    return _mismatch(xid, nearest[0].property, nearest[0].expected, nearest[0].actual)


def _failed(checks: Sequence[Check]) -> list[Check]:
    return [check for check in checks if not check.holds]


def _where(matcher: Matcher, channel: int) -> str:
    if channel < 0:
        return "for the record: no endpoint or source is known for it"
    endpoints = matcher.channels[channel].endpoints
    return f"at {', '.join(endpoints)}" if endpoints else "of the catalog"


def _mismatch(xid: str, name: str, expected: str | None, actual: str | None) -> str:
    if name == DATA:
        return f"the data does not fit {expected}, the schema of {xid}: {actual}"
    value = "nothing" if actual is None else repr(actual)
    return f"{xid} asks for {name} {expected!r}, and the record has {value}"


def _reason(outcome: Mapping[str, Any]) -> str:
    """Return what the outcome says by itself, where it is no mismatch of properties."""
    if outcome["outcome"] != "dead-letter" or outcome["reason"] == "no-match":
        return ""
    return f"; {outcome['reason']}: {outcome['detail']}"
