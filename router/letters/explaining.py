"""What the current catalog would say of a letter, candidate by candidate, as ``match --explain`` does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from catalog.model import Catalog
from catalog.schemas.ids.deciding import Frames
from router.letters.letter import Letter
from router.letters.redaction import HIDDEN, Redaction
from router.matching.explanation import FITS, EventExplained, ExplainedCandidate, Explainer, RecordExplained
from router.matching.records import RecordMatcher
from router.schemaids.framing import frames_of
from router.settings import Settings, SourceSettings

_BY_NAME = ("context", "cloudevent")


def explained_now(letter: Letter, catalog: Catalog, settings: Settings) -> RecordExplained:
    """Return the story of a letter's record under *catalog*, through the matcher that ``match`` uses.

    The candidates are those of the letter's endpoint; one without an endpoint is held against every definition.
    """
    explainer = explainer_of(catalog, settings, letter.endpoint)
    return explainer.explain(1, msgspec.json.encode(letter.record().to_json()))


def explainer_of(catalog: Catalog, settings: Settings, endpoint: str | None) -> Explainer:
    """Return what explains records of an endpoint under *catalog*; for thousands of definitions it is slow to make."""
    matcher = RecordMatcher(
        catalog,
        hop_by_hop=settings.match.hop_by_hop,
        validation=settings.match.validation,
        ambiguous=settings.match.ambiguous,
        frames=_frames(settings, endpoint),
    )
    return Explainer(matcher)


def _frames(settings: Settings, endpoint: str | None) -> Frames:
    """Return how bodies begin that came by an endpoint: one that is no source of the settings is as any."""
    source = next((each for each in settings.sources if each.endpoint == endpoint), None)
    if source is None:
        source = SourceSettings(endpoint=endpoint if endpoint is not None else "/endpoints/any")
    return frames_of(settings, [source])[source.endpoint]


def redacted_story(story: RecordExplained, redaction: Redaction) -> RecordExplained:
    """Return a story without what was hidden of its letter."""
    return replace(
        story,
        main=tuple((name, redaction.value(name, text) or "") for name, text in story.main),
        events=tuple(_event(event, redaction) for event in story.events),
        error=redaction.text(story.error),
    )


def _event(event: EventExplained, redaction: Redaction) -> EventExplained:
    return replace(
        event,
        faults=tuple(map(redaction.text, event.faults)),
        candidates=tuple(_candidate(candidate, redaction) for candidate in event.candidates),
        why=redaction.text(event.why),
        outcome=_outcome(event.outcome, redaction),
    )


def _candidate(candidate: ExplainedCandidate, redaction: Redaction) -> ExplainedCandidate:
    checks = tuple(
        replace(
            check,
            expected=redaction.value(check.property, check.expected),
            actual=redaction.value(check.property, check.actual),
        )
        for check in candidate.checks
    )
    schema = tuple(map(redaction.text, candidate.schema))
    if redaction.whole and schema not in ((), FITS):
        schema = (HIDDEN,)
    return replace(candidate, checks=checks, schema=schema, verdict=redaction.text(candidate.verdict))


def _outcome(outcome: Mapping[str, Any], redaction: Redaction) -> dict[str, Any]:
    shown = dict(outcome)
    for member in _BY_NAME:
        if member in shown:
            shown[member] = {name: redaction.value(name, text) for name, text in shown[member].items()}
    if "detail" in shown:
        shown["detail"] = redaction.detail(shown.get("reason"), shown["detail"])
    if "nearest" in shown:
        shown["nearest"] = [redaction.near(each) for each in shown["nearest"]]
    return shown
