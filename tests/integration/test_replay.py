"""Dead letters of every reason, from a real router: accounted for, and once the catalog is fixed replayed, once.

In the full run the replay is killed on its way, when the table has a batch of it and nothing says so, and repeated.
"""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from router.state.ledger import LetterLedger
from tests.support import shop
from tests.support.router import RouterProcess
from tests.support.web import Answer, Webhook

EACH = 20
REASONS = (*shop.MENDABLE, *shop.LASTING)
TOTAL = 400
"""Records, of which each reason has 5 %."""


def prepared(router: RouterProcess, hook: Webhook) -> None:
    """Fill the inbox of a router that is configured and not started."""
    shop.write_catalog(router.folder, fixed=False)
    router.configure(shop.settings(router.folder, hook.url))
    rows = [row for at, reason in enumerate(REASONS) for row in shop.records(reason, range(at * EACH, (at + 1) * EACH))]
    rows += shop.records("good", range(len(rows), TOTAL))
    shop.fill(router.folder / "state", rows)


@pytest.mark.parametrize(
    "killed", [pytest.param(False, id="at once"), pytest.param(True, id="killed", marks=pytest.mark.full)]
)
def test_five_percent_of_each_reason_are_accounted_for_and_replayed(router: RouterProcess, killed: bool) -> None:
    with Webhook(lambda request: Answer(422, body=b"not yet")) as hook:
        prepared(router, hook)
        router.launch("--once")
        assert router.wait(180) == 0, router.log[-3000:]
        letters = {row["letter"]: row for row in shop.rows_of(router.folder / "dead")}
        assert Counter(row["reason"] for row in letters.values()) == dict.fromkeys(REASONS, EACH)
        lake = shop.rows_of(router.folder / "lake")
        assert len(lake) == TOTAL - len(REASONS) * EACH + EACH  # The picky ones are here, and not at the hook.
        rejected = [row for row in letters.values() if row["reason"] == "sink-rejected"]
        assert all(row["detail"].startswith("sink hook: ") for row in rejected)

        replay = ("dead-letters", "replay", "CONFIG")
        before = shop.answer(router, *replay, "--dry-run")
        assert Counter({row["reason"]: row["letters"] for row in before if row["reason"]}) == Counter(
            dict.fromkeys(
                (*shop.LASTING, "no-match", "ambiguous", "schema-violation", "unmappable", "no-candidates"), EACH
            )
        )
        hook.answer = lambda request: Answer()
        shop.write_catalog(router.folder, fixed=True)
        told = shop.answer(router, *replay, "--dry-run", "--reason", "sink-rejected")
        assert [(row["outcome"], row["sinks"], row["letters"]) for row in told] == [("routed", ["hook"], EACH)]

        if killed:
            kill_one(router, *replay)
        result = shop.answer(router, *replay, "--batch", "120")
        assert result["routed"] == EACH * len(shop.MENDABLE)
        assert result["dead"] == dict.fromkeys(shop.LASTING, EACH)
        after = check_fixed(router.folder, letters)
        assert len(hook.taken) == EACH

        assert len(shop.rows_of(router.folder / "dead")) == len(letters)
        if killed:
            mendable = [word for reason in shop.MENDABLE for word in ("--reason", reason)]
            again = shop.answer(router, *replay, *mendable)
            assert shop.without_none(again) == {"skipped": {"replayed": EACH * len(shop.MENDABLE)}}
            assert check_fixed(router.folder, letters) == after
            assert len(hook.taken) == EACH
            assert len(shop.rows_of(router.folder / "dead")) == len(letters)


def kill_one(router: RouterProcess, *words: str) -> None:
    """Replay until the table has the first batch, and not a moment longer."""
    dying = ("tests.support.dying_router", "router.sinks.tables.delta:DeltaSink.commit_staged", "after", "0")
    done = shop.command(router, *words, "--batch", "60", module=dying)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    with LetterLedger.open(router.folder / "state", create=False) as ledger:
        assert ledger.pending() is not None


def check_fixed(folder: Path, letters: dict[str, dict[str, str]]) -> list[str]:
    """Every record that can be routed is in the table, once, with the id it would have had; returns their places."""
    rows = {row["position"]: row for row in shop.rows_of(folder / "lake")}
    assert len(rows) == len(shop.rows_of(folder / "lake")) == TOTAL - EACH * len(shop.LASTING)
    natives = [row for row in rows.values() if row["type"] == "native"]
    assert len(natives) == EACH
    assert all(row["id"] == row["position"] for row in natives)
    events = Counter(row["id"] for row in rows.values() if row["type"] != "native")
    numbers = [n for n in range(TOTAL) if n // EACH >= len(REASONS) or REASONS[n // EACH] in shop.MENDABLE]
    wanted = [n for n in numbers if n // EACH != REASONS.index("unmappable")]
    assert events == Counter(f"id-{n}" for n in wanted)
    with LetterLedger.open(folder / "state", create=False) as ledger:
        standing = ledger.standing(letters)
        assert ledger.pending() is None
    assert {letters[letter]["reason"] for letter, known in standing.items() if known == "replayed"} == set(
        shop.MENDABLE
    )
    return sorted(rows)
