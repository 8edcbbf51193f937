"""Whatever the letters hold, suggesting ends, and what it gives is a catalog that loads."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalog.convert import to_json_text
from catalog.documents.documents import Document
from catalog.documents.fetching import Fetcher
from catalog.findings import Findings
from catalog.load import build_catalog
from catalog.model import PROTOCOLS
from catalog.parsing.texts import parse_text
from catalog.record import Record
from router.commands.dead_letters.suggest import BaseCatalog, suggest
from tests.support.cases import examples

TEXT: Final = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["", "a/b/7", "a/b/c", "a//b", "{x}/7", "+/#", "a.b.9", "*.>", "%zz/é", "v1", "2026-01-02", "text/plain", "1.0"]
    ),
)
NAMES: Final = st.sampled_from(
    ["specversion", "id", "source", "type", "subject", "typ", "content-type", "x", "x.y", "", "X Y", "data", "cookie"]
)
ENTRIES: Final = st.lists(
    st.one_of(
        st.builds(lambda name, value: {"name": name, "value": value}, NAMES | TEXT, TEXT | st.none() | st.integers()),
        st.builds(lambda name: {"name": f"ce-{name}", "value": "1.0"}, NAMES),
        st.builds(lambda name: {"name": f"ce_{name}", "value": "1.0"}, NAMES),
    ),
    max_size=5,
)
MAPS: Final = st.dictionaries(NAMES | TEXT, TEXT | st.integers() | st.booleans(), max_size=4)
NATIVE: Final[st.SearchStrategy[dict[str, Any]]] = st.fixed_dictionaries(
    {},
    optional={
        "topic_name": TEXT,
        "topic": TEXT,
        "subject": TEXT,
        "path": TEXT,
        "method": TEXT,
        "key": TEXT,
        "status": TEXT | st.integers(),
        "content_type": TEXT,
        "headers": ENTRIES,
        "query": ENTRIES,
        "user_properties": ENTRIES,
        "properties": MAPS,
        "application-properties": MAPS,
        "qos": st.integers(),
    },
)
JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
BODIES: Final = st.one_of(st.none(), st.binary(max_size=8), JSON.map(lambda value: to_json_text({"v": value}).encode()))
ENDPOINTS: Final = st.sampled_from([None, "/endpoints/e", "/endpoints/new", "/endpoints/a b", "odd", ""])
RECORDS: Final = st.builds(Record, st.sampled_from([*PROTOCOLS, "MQTT", "HTTP/1.1", "odd"]), NATIVE, BODIES, ENDPOINTS)
CATALOG: Final = (
    '{"endpoints": {"e": {"usage": ["consumer"], "messagegroups": ["/messagegroups/G"]}}, "messagegroups": {"G":'
    ' {"messages": {"M": {"protocol": "NATS", "protocoloptions": {"subject": {"value": "known.{x}"}}}}}}}'
)


@pytest.mark.slow
@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(st.lists(RECORDS, max_size=8), st.sampled_from([1, 2]))
def test_any_records_give_a_fragment_that_loads_without_errors(
    tmp_path_factory: Any, records: list[Record], least: int
) -> None:
    file = tmp_path_factory.getbasetemp() / "suggest-robustness.json"
    if not file.exists():
        file.write_text(CATALOG)
    found = suggest([*records, *records], BaseCatalog([file], Fetcher(network=False)), fewest=least)

    text = to_json_text(found.fragment)
    alone = build_catalog([Document("drafts", parse_text("drafts", text.encode()).tree)], Findings())
    if found.drafts:
        assert {each.xid for each in found.drafts} == set(alone.definitions)
        assert not [each for each in alone.findings if each.severity == "error"]
    assert sum(each.letters for each in found.drafts) + sum(found.left_out.values()) == 2 * len(records)
    assert not [each for each in found.findings if each.startswith("error")]
