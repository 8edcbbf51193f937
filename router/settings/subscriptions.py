"""Subscriptions at an endpoint with usage subscriber: whom to ask, for what, and where it is to be delivered."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from pydantic import Field, SecretStr

from router.settings.section import Section
from router.settings.values import Duration, Text, Texts

_URL = r"^[Hh][Tt][Tt][Pp][Ss]?://[^\s/?#@\\]+(?:/[^\s#]*)?$"


class SubscriptionSettings(Section):
    """What is asked of a subscription manager, by the CloudEvents Subscriptions API."""

    sink: str = Field(
        description="Address at which the manager reaches the HTTP gateway; its path is listened at.", pattern=_URL
    )
    manager: str | None = Field(
        None,
        description="URL that subscriptions are posted to, instead of the endpoint's own address.",
        pattern=_URL,
    )
    source: str | None = Field(None, description="Source of the events that are asked for.")
    types: Texts = Field((), description="Types of the events; none is all.")
    exact: dict[str, Text] = Field({}, description="Filter: attributes that are equal to these values.")
    prefix: dict[str, Text] = Field({}, description="Filter: attributes that begin with these values.")
    suffix: dict[str, Text] = Field({}, description="Filter: attributes that end with these values.")
    lasts: Duration = Field(
        timedelta(hours=1), description="How long it is asked for; it is renewed after half of that. 0 names no end."
    )
    keep: bool = Field(False, description="Whether it stays when the router is stopped; else it is deleted.")
    token: SecretStr | None = Field(
        None, description="Bearer token that the manager is to show to the gateway; `manager` is required beside it."
    )


def subscription_faults(key: str, chosen: SubscriptionSettings, *, plain: bool) -> Iterator[tuple[str, str]]:
    """Yield what contradicts itself in a subscription; with *plain* secrets may be sent without TLS."""
    if timedelta(0) < chosen.lasts < timedelta(seconds=2):
        yield f"{key}.lasts", "is too short to be renewed in time; give it two seconds or more, or 0"
    if chosen.token is None:
        return
    if chosen.manager is None:
        yield f"{key}.manager", "is missing beside token: a changed catalog could send the token elsewhere; add it"
    for name in ("manager", "sink"):
        url = getattr(chosen, name) or ""
        if url.lower().startswith("http:") and not plain:
            fault = "would carry the token without TLS; write https://, or set allow_plaintext_password"
            yield f"{key}.{name}", fault
