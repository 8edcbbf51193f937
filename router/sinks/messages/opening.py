"""From the settings of a sink that sends messages, and its endpoint in the catalog, to the sink."""

from __future__ import annotations

from typing import cast

from bindings.protocols import BINDINGS, Binding
from catalog.model import Catalog, Endpoint
from catalog.parsing.nearest import Suggestions
from router.errors import SinkError
from router.settings.addresses import parse_address
from router.settings.sinks.contract import RemoteSink
from router.sinks.contract import ArrowSink
from router.sinks.messages.connecting import kept
from router.sinks.messages.definitions import EndpointComposer
from router.sinks.messages.events import Mode
from router.sinks.messages.passing import HeaderPassing
from router.sinks.messages.sink import Composer, ConfirmedSink, TemplateComposer
from router.sinks.messages.spread import kept_spread


def open_messages(name: str, settings: RemoteSink, kind: str, catalog: Catalog, framings: object) -> ArrowSink:
    """Make the sink of events; none of these takes dead letters."""
    endpoint = endpoint_of(name, settings, catalog)
    settings.check(name, endpoint)
    composer = composer_of(settings, endpoint, catalog)
    publisher = kept(name, settings, endpoint)
    spread = kept_spread(spread_key(name, settings), settings.max_destinations)
    return ConfirmedSink(name, composer, publisher, settings.body_limit, spread)


def endpoint_of(name: str, settings: RemoteSink, catalog: Catalog) -> Endpoint | None:
    """Return the endpoint that a sink names; None when it names none.

    Raises:
        SinkError: the catalog lacks it, or it is none that this type of sink can send to. A later catalog may mend it.
    """
    if settings.endpoint is None:
        return None
    endpoint = catalog.endpoints.get(settings.endpoint)
    if endpoint is None:
        hint = Suggestions(catalog.endpoints).hint(settings.endpoint, "add it, or correct the name")
        raise SinkError(name, f"the catalog has no endpoint {settings.endpoint}", hint=hint)
    if endpoint.usage and "producer" not in endpoint.usage:
        used = ", ".join(endpoint.usage)
        raise SinkError(name, f"{endpoint.xid} is for {used}", hint="name an endpoint with usage producer")
    binding = BINDINGS.get(endpoint.protocol or "")
    if binding is None or binding.sending.family != settings.family:
        spoken = endpoint.protocol or "no protocol"
        text = f"{endpoint.xid} has {spoken}, the sink is {settings.family}"
        raise SinkError(name, text, hint="change the type of the sink")
    return endpoint


def composer_of(settings: RemoteSink, endpoint: Endpoint | None, catalog: Catalog) -> Composer:
    """Return what makes messages of events: the endpoint's definitions, or the template of the settings."""
    binding = settings.binding(endpoint)
    passing = passing_of(settings, binding)
    mode = cast(Mode | None, settings.content_mode)
    if endpoint is not None:
        return EndpointComposer(
            catalog,
            endpoint,
            binding,
            mode=mode,
            lineage=settings.lineage,
            least=settings.least,
            passing=passing,
            uncarried=settings.uncarried,
        )
    return TemplateComposer(
        parse_address(settings.template, binding.sending),
        binding,
        mode or ("binary" if binding.binary else "structured"),
        strict=settings.missing == "reject",
        lineage=settings.lineage,
        given=settings.given,
        passing=passing,
    )


def passing_of(settings: RemoteSink, binding: Binding) -> HeaderPassing | None:
    """Return what passes headers on; None where the settings want none of them."""
    return None if settings.taken_headers is None else HeaderPassing(binding, settings.taken_headers)


def spread_key(name: str, settings: RemoteSink) -> str:
    """Name what a sink's destinations are counted by: the sink, where it is connected to, and what makes them."""
    return repr((name, settings.own_addresses, settings.endpoint, settings.template))
