"""Every secret of the settings is known by its place, so that it is neither written out nor kept with a plan."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel, SecretStr

from router.commands.registry.settings import RegistryFile
from router.errors import ConfigError
from router.settings import settings_from_dict
from router.settings.catalogs import TlsSettings
from router.settings.load import apply_environment, fields_by_key
from router.settings.model import Settings
from router.settings.values import KeyPath, format_key, is_file_key, is_secret_key

FREE = "x.secret"
"""Stands for a free key. Only options of clients are secret by their names, and this is one such name."""
SUBSCRIBED: dict[str, Any] = {
    "sources": [
        {
            "endpoint": "/endpoints/news",
            "subscription": {"sink": "https://us.example/news", "manager": "https://them.example/subscriptions"},
        }
    ],
    "sinks": {"dead": {"type": "jsonl", "path": "dead"}},
    "routes": [{"to": ["dead"]}],
    "dead_letters": {"sinks": ["dead"]},
}


def places_of(wanted: type, annotation: Any, place: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield where values of a type stand in settings of a model, free keys and indexes filled in."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is wanted:
        yield place
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for key, field in fields_by_key(annotation).items():
            yield from places_of(wanted, field.annotation, (*place, key))
    elif origin is Annotated:
        yield from places_of(wanted, arguments[0], place)
    elif origin in (Union, types.UnionType):
        for member in arguments:
            yield from places_of(wanted, member, place)
    elif origin in (dict, Mapping):
        yield from places_of(wanted, arguments[1], (*place, FREE))
    elif origin in (tuple, list):
        yield from places_of(wanted, arguments[0], (*place, "0"))


def named(wanted: type) -> list[Any]:
    places = {place for model in (Settings, RegistryFile) for place in places_of(wanted, model)}
    return [pytest.param(place, id=format_key(place)) for place in sorted(places)]


def test_the_walk_comes_everywhere() -> None:
    known = {
        ("sources", "0", "subscription", "token"),
        ("sinks", FREE, "headers", FREE),
        ("http", "auth", "bearer", FREE),
        ("events", "subscribers", FREE, "to", "api_key"),
        ("replication", "0", "bearer"),
    }
    assert known <= {each.values[0] for each in named(SecretStr)}


@pytest.mark.parametrize("place", named(SecretStr))
def test_every_secret_is_known_by_its_place(place: KeyPath) -> None:
    assert is_secret_key(place)


@pytest.mark.parametrize("place", named(TlsSettings))
def test_every_certificate_is_known_as_a_file(place: KeyPath) -> None:
    assert all(is_file_key((*place, key)) for key in fields_by_key(TlsSettings))


def test_a_token_of_a_subscription_is_not_written_out(tmp_path: Path) -> None:
    written = apply_environment(SUBSCRIBED, {"XROUTER_SOURCES__0__SUBSCRIPTION__TOKEN": "t0ken"})
    settings = settings_from_dict(written, {"XROUTER_SOURCES__0__SUBSCRIPTION__TOKEN": "t0ken"}, tmp_path)
    subscription = settings.sources[0].subscription
    assert subscription is not None and subscription.token is not None
    assert subscription.token.get_secret_value() == "t0ken"
    assert "t0ken" not in str(settings.unresolved)
    written["sources"][0]["subscription"]["token"] = "t0ken"
    with pytest.raises(ConfigError, match="must not be in plain text"):
        settings_from_dict(written, {}, tmp_path)
