"""JSON forms of a catalog: the lines of ``xrouter catalog list``, and the lossless form that plans are pinned with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any, Final

from catalog.model import Catalog, Definition, Endpoint, Finding, Property, Relation
from catalog.protocols.properties import AMQP_SECTIONS

FORMAT: Final = 1
"""Version of the lossless form."""
_LISTS: Final = frozenset({"headers", "query", "user_properties"})


def listing(definition: Definition, catalog: Catalog) -> dict[str, Any]:
    """Return one line of ``catalog list``: the effective definition in 1.0 spelling.

    ``endpoints`` are the xids of the endpoints that expect it; their defaults are not applied. A definition that is
    related to none has no ``relation``.
    """
    line = {
        "xid": definition.xid,
        "envelope": definition.envelope,
        "protocol": definition.protocol,
        "envelopemetadata": {prop.name: _body(prop) for prop in definition.envelopemetadata},
        "protocoloptions": nested_options(definition.protocoloptions),
        "dataschemaformat": definition.dataschemaformat,
        "dataschemauri": definition.dataschemauri,
        "datacontenttype": definition.datacontenttype,
        "base": list(definition.base),
        "endpoints": [xid for xid, endpoint in catalog.endpoints.items() if definition.xid in _candidates(endpoint)],
    }
    relation = definition.relation
    return line if relation is None else {**line, "relation": asdict(relation)}


def nested_options(properties: Iterable[Property]) -> dict[str, Any]:
    """Return protocol options in 1.0 shape: headers, query and user properties as lists, AMQP sections as maps."""
    nested: dict[str, Any] = {}
    for prop in properties:
        section, _, name = prop.name.partition(".")
        if name and section in _LISTS:
            nested.setdefault(section, []).append({"name": name, **_body(prop)})
        elif name and section in AMQP_SECTIONS:
            nested.setdefault(section, {})[name] = _body(prop)
        else:
            nested[prop.name] = _body(prop)
    return nested


def definition_to_json(definition: Definition) -> dict[str, Any]:
    """Return a definition as plain JSON, losing nothing; :func:`definition_from_json` reads it."""
    form = _plain(definition)
    for member in ("envelopemetadata", "protocoloptions"):
        form[member] = [_listed(prop) for prop in getattr(definition, member)]
    relation = form.pop("relation")
    return form if relation is None else {**form, "relation": asdict(relation)}


def definition_from_json(form: Mapping[str, Any]) -> Definition:
    """Read what :func:`definition_to_json` wrote."""
    read = dict(form)
    for member in ("envelopemetadata", "protocoloptions"):
        read[member] = tuple(Property(*prop) for prop in form[member])
    read["base"] = tuple(form["base"])
    if "relation" in form:
        read["relation"] = Relation(**form["relation"])
    return Definition(**read)


def meaning_of(catalog: Catalog) -> Iterator[Any]:
    """Give what a catalog means in parts of plain JSON, always in one order; findings are no part of it."""
    yield from (definition_to_json(catalog.definitions[xid]) for xid in sorted(catalog.definitions))
    yield from ([xid, *catalog.groups[xid]] for xid in sorted(catalog.groups))
    yield from (_plain(catalog.endpoints[xid]) for xid in sorted(catalog.endpoints))
    yield from ([xid, catalog.schemas[xid]] for xid in sorted(catalog.schemas))


def catalog_to_json(catalog: Catalog) -> dict[str, Any]:
    """Return a whole catalog as plain JSON, losing nothing; :func:`catalog_from_json` reads it."""
    return {
        "format": FORMAT,
        "definitions": [definition_to_json(each) for each in catalog.definitions.values()],
        "groups": {xid: list(members) for xid, members in catalog.groups.items()},
        "endpoints": [_plain(endpoint) for endpoint in catalog.endpoints.values()],
        "schemas": dict(catalog.schemas),
        "findings": [finding_to_json(finding) for finding in catalog.findings],
        "epoch": catalog.epoch,
        "pending": list(catalog.pending),
        "order": list(catalog.order),
    }


def catalog_from_json(form: Mapping[str, Any]) -> Catalog:
    """Read what :func:`catalog_to_json` wrote.

    Raises:
        ValueError: it was written in another format.
    """
    if form.get("format") != FORMAT:
        raise ValueError(f"a catalog of format {form.get('format')!r} cannot be read; this is format {FORMAT}")
    definitions = map(definition_from_json, form["definitions"])
    endpoints = map(_endpoint, form["endpoints"])
    return Catalog(
        definitions={each.xid: each for each in definitions},
        groups={xid: tuple(members) for xid, members in form["groups"].items()},
        endpoints={each.xid: each for each in endpoints},
        schemas=dict(form["schemas"]),
        findings=tuple(Finding(**finding) for finding in form["findings"]),
        epoch=form["epoch"],
        pending=tuple(form.get("pending", ())),
        order=tuple(form.get("order", ())),
    )


def finding_to_json(finding: Finding) -> dict[str, str]:
    """Return a finding with exactly the members of ``check --format json``."""
    return _plain(finding)


def _plain(record: Definition | Endpoint | Finding) -> dict[str, Any]:
    form = {each.name: getattr(record, each.name) for each in fields(record)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in form.items()}


def _endpoint(form: Mapping[str, Any]) -> Endpoint:
    read: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in form.items()}
    return Endpoint(**read)


def _listed(prop: Property) -> list[Any]:
    listed = [prop.name, prop.type, prop.value, prop.required]
    return [*listed, prop.wire] if prop.wire else listed


def _body(prop: Property) -> dict[str, Any]:
    return {"type": prop.type, "value": prop.value, "required": prop.required}


@lru_cache(maxsize=1024)
def _candidate_set(candidates: tuple[str, ...]) -> frozenset[str]:
    return frozenset(candidates)


def _candidates(endpoint: Endpoint) -> frozenset[str]:
    return _candidate_set(endpoint.candidates)
