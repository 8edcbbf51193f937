"""The OpenAPI document of a registry: true of its model, and of its answers to random requests."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from bindings.http.request import Access
from registry.delivery.subscriptions import DeliveryLimits, DeliverySettings
from registry.http.access import Roles
from registry.model.attributes import model_source
from tests.support.registry import served

_logger = logging.getLogger(__name__)
DELIVERY = DeliverySettings(allowed=("127.0.0.1",), limits=DeliveryLimits(max_subscriptions=5))


def send_random(base: str, count: int, number: int, *, every: int = 1) -> Counter[int]:
    """Send random requests; what makes them is loaded where it is used, and not by all who collect this module."""
    from tests.support import round_trip as random_requests

    return random_requests.send_random(base, count, number, every=every)


def document(client: Any) -> dict[str, Any]:
    answer = client.get("/openapi.json")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_it_has_every_method_of_every_path(tmp_path: Path) -> None:
    with served(tmp_path) as client:
        shown = document(client)
        assert shown["servers"] == [{"url": str(client.base_url).rstrip("/")}]
        for path, item in shown["paths"].items():
            methods = {name.upper() for name in item} - {"PARAMETERS"}
            allowed = set(client.options(path).headers["allow"].split(", ")) - {"HEAD", "OPTIONS"}
            without_patch = f"{path}$details" in shown["paths"]
            assert methods == allowed - ({"PATCH"} if without_patch else set()), path


def flags_of(shown: dict[str, Any], path: str, method: str) -> dict[str, Any]:
    """The parameters in the query of an operation, with their schemas."""
    return {
        each["name"]: each["schema"] for each in shown["paths"][path][method]["parameters"] if each["in"] == "query"
    }


def test_it_has_no_flag_that_is_turned_off(tmp_path: Path) -> None:
    groups, one = "/messagegroups", "/messagegroups/{messagegroupid}"
    with served(tmp_path) as client:
        before = document(client)
        assert {"filter", "inline", "sort", "limit", "cursor"} <= flags_of(before, groups, "get").keys()
        assert "id" in flags_of(before, one, "put")["ignore"]["items"]["enum"]
        given = {"flags": ["filter", "ignore"], "ignores": ["epoch"], "pagination": False}
        assert client.patch("/capabilities", json=given).status_code == 200
        shown = document(client)
        assert flags_of(shown, groups, "get").keys() == {"filter"}
        assert flags_of(shown, one, "put")["ignore"]["items"]["enum"] == ["*", "epoch"]
        assert client.patch("/capabilities", json={"flags": None}).status_code == 200
        assert {"inline", "sort"} <= flags_of(document(client), groups, "get").keys()


def test_it_follows_the_model(tmp_path: Path) -> None:
    source = model_source()
    shelf = {
        "singular": "shelf",
        "resources": {"books": {"singular": "book", "attributes": {"pages": {"type": "uinteger"}}}},
    }
    source["groups"]["shelves"] = shelf
    with served(tmp_path) as client:
        assert "/shelves" not in document(client)["paths"]
        assert client.put("/modelsource", json=source).status_code == 200
        shown = document(client)
        assert "/shelves/{shelfid}/books/{bookid}/versions/{versionid}$details" in shown["paths"]
        schemas = shown["components"]["schemas"]
        assert schemas["shelves.books"]["properties"]["pages"] == {"type": "integer", "minimum": 0}
        assert schemas["shelves"]["properties"]["books"]["additionalProperties"] == {
            "$ref": "#/components/schemas/shelves.books"
        }
        # Messages of endpoints are those of message groups.
        ours = schemas["endpoints"]["properties"]["messages"]["additionalProperties"]
        assert ours == {"$ref": "#/components/schemas/messagegroups.messages"}


def test_it_is_true_of_attributes_whose_condition_does_not_hold(tmp_path: Path) -> None:
    with served(tmp_path) as client:
        shown = document(client)
        for envelope, status in (({"envelope": "CloudEvents/1.0"}, 400), ({}, 201)):
            given = {**envelope, "envelopemetadata": {"Á": "x"}}
            answer = client.put("/messagegroups/g/messages/m", json=given)
            assert answer.status_code == status
        name = "#/components/schemas/messagegroups.messages"
        jsonschema_rs.Draft202012Validator({**shown, "$ref": name}).validate(answer.json())


def test_it_names_the_credentials_that_are_asked_for(tmp_path: Path) -> None:
    access = Access(bearer={"a": "token"}, basic={"b": "secret"}, api_keys={"c": "key"})
    with served(tmp_path, access=access, roles=Roles(anonymous=True)) as client:
        shown = document(client)
        assert shown["security"] == [{"bearer": []}, {"basic": []}, {"key": []}]
        schemes = shown["components"]["securitySchemes"]
        assert schemes["key"] == {"type": "apiKey", "in": "header", "name": "X-API-Key"}
        assert "token" not in str(shown["components"]["securitySchemes"])


def test_it_has_subscriptions_where_there_are_some(tmp_path: Path) -> None:
    with served(tmp_path) as client:
        paths = document(client)["paths"]
        assert set(paths["/subscriptions/{subscriptionid}"]) == {"parameters", "get", "put", "delete"}


def test_types_of_the_model_at_the_paths_of_subscriptions_are_not_in_it(tmp_path: Path) -> None:
    resources = {"notes": {"singular": "note"}}
    groups = {plural: {"singular": plural[:-1], "resources": resources} for plural in ("subscriptions", "permissions")}
    paths: list[set[str]] = []
    for delivery in (DeliverySettings(), DeliverySettings(subscriptions=False)):
        with served(tmp_path, delivery=delivery) as client:
            client.put("/modelsource", json={"groups": groups}).raise_for_status()
            paths.append(set(document(client)["paths"]))
    taken, free = ({each for each in some if each.startswith(("/subscriptions", "/permissions"))} for some in paths)
    assert taken == {"/subscriptions", "/subscriptions/{subscriptionid}"}
    assert {"/permissions/{permissionid}", "/subscriptions/{subscriptionid}/notes"} < free


@pytest.mark.slow
def test_random_requests_meet_no_server_error(tmp_path: Path) -> None:
    with served(tmp_path, delivery=DELIVERY) as client:
        statuses = send_random(str(client.base_url).rstrip("/"), 100, 1, every=4)
        assert {200, 201, 204, 400, 404} <= statuses.keys(), statuses


@pytest.mark.full
@pytest.mark.timeout(7200)
def test_twenty_thousand_random_requests_meet_no_server_error(tmp_path: Path) -> None:
    with served(tmp_path, delivery=DELIVERY) as client:
        statuses = send_random(str(client.base_url).rstrip("/"), 20_000, 2)
        _logger.info("answers by status: %s", dict(sorted(statuses.items())))
        assert {200, 201, 204, 304, 400, 404, 412} <= statuses.keys(), statuses
