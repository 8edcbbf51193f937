"""A small registry of a shop for tests of its pages: messages with a base, schemas of two versions, a type of ours."""

from __future__ import annotations

from typing import Any, Final

import httpx

from registry.model.attributes import model_source

SCHEMA: Final = "/schemagroups/shop/schemas/order"
PLACED: Final = "/messagegroups/shop/messages/order.placed"


def fill(client: httpx.Client, **headers: str) -> None:
    """Write all of it."""

    def put(path: str, body: Any, **more: str) -> None:
        client.request("PUT", path, json=body, headers={**headers, **more}).raise_for_status()

    source = model_source()
    source["groups"]["robots"] = {
        "singular": "robot",
        "attributes": {"arms": {"type": "uinteger"}},
        "resources": {"programs": {"singular": "program", "hasdocument": False}},
    }
    put("/modelsource", source)
    put("/schemagroups/shop", {"description": "What orders look like."})
    properties: dict[str, Any] = {"id": {"type": "string"}, "price": {"type": "number"}}
    for version in (1, 2):
        schema = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": properties}
        attributes = {"format": "JsonSchema/draft-07", "contenttype": "application/json", "schema": schema}
        put(f"{SCHEMA}/versions/{version}$details", attributes)
        properties["currency"] = {"enum": ["EUR", "USD"]}
    put("/messagegroups/shop", {"envelope": "CloudEvents/1.0", "name": "The shop", "protocol": "HTTP"})
    base = {"type": {"value": "order"}, "source": {"value": "/shops/{shop}", "type": "uritemplate"}}
    put("/messagegroups/shop/messages/order", {"envelope": "CloudEvents/1.0", "envelopemetadata": base})
    placed = {
        "envelope": "CloudEvents/1.0",
        "name": "An order was placed",
        "description": "Sent once for each order.",
        "basemessage": "/messagegroups/shop/messages/order",
        "envelopemetadata": {"type": {"value": "order.placed"}, "subject": {"required": True}},
        "dataschemaformat": "JsonSchema/draft-07",
        "dataschemauri": SCHEMA,
    }
    put(PLACED, placed)
    endpoint: dict[str, Any] = {"usage": ["consumer"], "protocol": "HTTP", "envelope": "CloudEvents/1.0"}
    endpoint |= {"messagegroups": ["/messagegroups/shop"], "deprecated": {}}
    put("/endpoints/web", endpoint)
    put("/robots/r2", {"arms": 2})
    put("/robots/r2/programs/wash", {"name": "Washing"})
