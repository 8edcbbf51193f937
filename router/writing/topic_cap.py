"""The cap on the topics that a Kafka sink's template makes (JUDGING.md#what-comes-out), held on the driver.

Spark writes those records, so they are not seen one by one. Where the catalog bounds the topics below the cap nothing
is done. Else the distinct topics of a batch are counted before it is written, on the rows that were kept for its sinks;
records of topics past the cap are taken out and rejected. The topics known are those of
:mod:`router.sinks.messages.spread`: a batch that is written again in the same process is divided as before, and a
restart begins to count anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from catalog.model import Catalog
from catalog.templates import TEMPLATE_TYPES, parse
from catalog.values import text_of
from router.settings import KafkaSink, Settings
from router.settings.names import ATTRIBUTE_PREFIX, CONTEXT_PREFIX, Template, value_name
from router.sinks.contract import Rejected
from router.sinks.messages.opening import spread_key
from router.sinks.messages.spread import Spread, kept_spread
from router.writing.outcomes import Outcomes

_OF_DEFINITION: Final = ("message", "messageid", "messagegroup")


def capped_topics(settings: Settings, topics: Mapping[str, Template], catalog: Catalog) -> dict[str, Spread]:
    """Return, by sink, the topics that Kafka sinks have had, for those whose templates may make more than their cap."""
    capped: dict[str, Spread] = {}
    for name, template in topics.items():
        sink = settings.sinks[name].topics
        if sink is not None and is_counted(sink, template, catalog):
            capped[name] = kept_spread(spread_key(name, sink), sink.max_destinations)
    return capped


def is_counted(sink: KafkaSink, template: Template, catalog: Catalog) -> bool:
    """Tell whether a template may make more topics than the cap of its sink, as far as the catalog tells."""
    named = {value_name(variable) for variable in template.variables}
    if any(name.startswith(CONTEXT_PREFIX) for name in named):
        return True
    attributes = {name.removeprefix(ATTRIBUTE_PREFIX) for name in named if name.startswith(ATTRIBUTE_PREFIX)}
    if not all(_is_literal(catalog, attribute) for attribute in attributes):
        return True
    by_definition = bool(attributes) or not named.isdisjoint(_OF_DEFINITION)
    by_endpoint = not named.isdisjoint(("endpoint", "endpointid"))
    bound = (len(catalog.definitions) if by_definition else 1) * (len(catalog.endpoints) if by_endpoint else 1)
    return bound > sink.max_destinations


def within(events: Outcomes, sink: str, spread: Spread) -> tuple[Outcomes, tuple[Rejected, ...]]:
    """Return the events of a sink whose topic is within its cap, and what is rejected of the others.

    The events are read twice, or three times when some are rejected.
    """
    # In the order of their names: a batch that is counted again after a restart is divided in the same way.
    past = {name: fault for name in sorted(events.topics(sink)) if (fault := spread.fault(name)) is not None}
    if not past:
        return events, ()
    outside = events.to_topics(sink, past)
    rejected = (
        Rejected(each.position, f"topic {topic}: {past[topic]}", each.endpoint, each.message) for topic, each in outside
    )
    return events.without([each.letter for _, each in outside]), tuple(rejected)


def _is_literal(catalog: Catalog, attribute: str) -> bool:
    """Tell whether every definition gives an attribute one value."""
    for definition in catalog.definitions.values():
        prop = next((each for each in definition.envelopemetadata if each.name == attribute), None)
        if prop is None or prop.value is None:
            return False
        if prop.type in TEMPLATE_TYPES and not parse(text_of(prop.value)).is_literal:
            return False
    return True
