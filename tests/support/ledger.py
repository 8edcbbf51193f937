"""Dead letters that were replayed before a test begins."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from router.state.ledger import LetterLedger, Outcome, PendingReplay


def attempted(ledger: LetterLedger, failed: Iterable[tuple[str, str, str]], when: datetime) -> None:
    """Have letters (id, reason, detail) judged again, in vain."""
    settle(ledger, [Outcome(*each) for each in failed], when)


def replayed(ledger: LetterLedger, ids: Iterable[str], when: datetime) -> None:
    """Have letters become events."""
    settle(ledger, [Outcome(letter) for letter in ids], when)


def settle(ledger: LetterLedger, outcomes: list[Outcome], when: datetime) -> None:
    number = ledger.next_number()
    ledger.begin(PendingReplay(number, "plan", tuple(each.letter for each in outcomes)))
    ledger.finish(number, outcomes, when)
