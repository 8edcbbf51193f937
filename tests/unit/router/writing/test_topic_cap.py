"""Which templates of Kafka topics have to be counted, as far as the catalog tells."""

from __future__ import annotations

import pytest

from catalog.model import Catalog, Definition, Endpoint, Property
from router.settings import KafkaSink
from router.settings.routes import parse_name
from router.writing.writer import may_exceed_cap

TYPED = Property("type", "string", "t")


def catalog(*attributes: Property) -> Catalog:
    definitions = {f"/m/{n}": Definition(f"/m/{n}", "/m", envelopemetadata=attributes) for n in range(3)}
    return Catalog(definitions, endpoints={f"/endpoints/{n}": Endpoint(f"/endpoints/{n}") for n in range(2)})


@pytest.mark.parametrize(
    ("template", "most", "counted"),
    [
        ("fixed", 1, False),
        ("{messagegroup}.{messageid}", 3, False),
        ("{messageid}", 2, True),
        ("{endpointid}", 2, False),
        ("{endpoint}.{message}", 5, True),
        ("{endpoint}.{message}", 6, False),
        ("{type}", 3, False),
        ("{attributes.type}", 2, True),
        ("{context.plant}", 10_000, True),
        ("{subject}", 10_000, True),
    ],
)
def test_only_what_the_catalog_does_not_bound_is_counted(template: str, most: int, counted: bool) -> None:
    sink = KafkaSink(type="kafka", bootstrap_servers="b", topic=template, max_destinations=most)
    assert may_exceed_cap(sink, parse_name(template), catalog(TYPED)) is counted


@pytest.mark.parametrize("prop", [Property("type", "string", "t.{x}"), Property("type", "string")])
def test_an_attribute_that_one_definition_leaves_open_is_counted(prop: Property) -> None:
    sink = KafkaSink(type="kafka", bootstrap_servers="b", topic="{type}")
    assert may_exceed_cap(sink, parse_name("{type}"), catalog(prop))
