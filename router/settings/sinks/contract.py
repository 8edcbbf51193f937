"""The interface of a sink's settings, whatever its kind.

To add a kind of sink, add a module here, a line in :data:`router.settings.sinks.kinds.KINDS`, and the functions that it
names as ``module:function``. Those are imported when called, so that a router loads only the libraries of its sinks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, SecretStr

from bindings.gateways import Connection
from bindings.parts import Part
from bindings.protocols import BINDINGS, Binding, sending_of
from bindings.sending import Publisher, SendingBinding
from catalog.model import Endpoint
from router.errors import SinkError
from router.settings.catalogs import ClientLogin, to_tls
from router.settings.routes import DestinationTemplate, escape_level, parse_address
from router.settings.values import ENDPOINT, LineageForm, Section

if TYPE_CHECKING:
    from bindings.kafka.client import KafkaClient
    from router.settings.sinks.kafka import KafkaSink

Fault = tuple[str, str]
"""A key of the settings, and what is wrong there, with the fix."""
TemplateFiller = Callable[[DestinationTemplate, Callable[[str], str]], str]
"""Fills in the known variables of a template; the function escapes each value."""


class SinkSettings(Section):
    """One sink. Defaults are for a sink on disk that accepts both events and dead letters."""

    opener: ClassVar[str]
    """Opens the sink, as :func:`router.sinks.contract.open_sink`."""
    letters: ClassVar[str] = ""
    """Opens the store of its dead letters, as :class:`router.dead_letters.stores.LetterStore`; see ``readable``."""
    pairs: ClassVar[str] = ""
    """Opens the sink of request-reply pairs, as :func:`router.sinks.pairs.open_pair_table`; empty if none."""
    tabular: ClassVar[bool] = False
    """Whether it has typed columns: times are instants, and events and dead letters need separate tables."""
    needs_connector: ClassVar[bool] = False
    """Whether Spark needs its Kafka connector for the sink."""

    @property
    def typed(self) -> bool:
        """Whether it has typed columns for payloads."""
        return False

    @property
    def readable(self) -> bool:
        """Whether dead letters can be read back."""
        return bool(self.letters)

    @property
    def folder(self) -> str:
        """The folder or URL that no other sink may share; empty for none."""
        return ""

    @property
    def staging_folder(self) -> str:
        """The folder or URL in the settings that executors write to; empty for none."""
        return ""

    @property
    def topics(self) -> KafkaSink | None:
        """The sink itself if Spark writes its rows to topics, else None."""
        return None

    @property
    def framed(self) -> KafkaSink | None:
        """The sink itself if its bodies begin with schema ids, else None."""
        return None

    @property
    def remote(self) -> RemoteSink | None:
        """The sink itself if it connects to a server, else None."""
        return None

    @property
    def sends_messages(self) -> bool:
        """Whether each event becomes one message, which the target may reject."""
        return self.remote is not None and self.topics is None

    @property
    def record_limit(self) -> int | None:
        """The maximum bytes of one record, headers included; None for no limit."""
        return None

    @property
    def unknown_commit_reason(self) -> str:
        """Why it cannot tell whether it has a batch; empty if it can."""
        return ""

    def faults(self, key: str, *, events: bool, letters: bool) -> Iterator[Fault]:
        """Yield contradictions in the sink at *key*, which receives *events*, dead *letters*, both or neither."""
        yield from ()

    def pair_faults(self) -> Iterator[str]:
        """Yield why it cannot accept request-reply pairs, with the fix."""
        if not self.pairs:
            yield "cannot accept request-reply pairs; name a table (format: delta) or a Kafka topic"

    @abstractmethod
    def destination(self, filled: TemplateFiller, *, letters: bool) -> str:
        """Return where records go, with the known variables filled in."""


@dataclass(frozen=True, slots=True)
class MessageForm:
    """The form of messages that settings ask for.

    ``mode`` is the CloudEvents content mode; None leaves it to the definitions. ``least`` are minimum values of numeric
    parts, ``given`` parts that every message of a template has, and ``uncarried`` those that the target cannot carry.
    ``reserved_headers`` are lower-case names that the client itself sets; None passes on no headers of records.
    ``max_body`` is in bytes; None is the target's own limit.
    """

    mode: Literal["binary", "structured"] | None = None
    least: Mapping[str, int] = field(default_factory=dict)
    given: tuple[Part, ...] = ()
    uncarried: frozenset[str] = frozenset()
    reserved_headers: frozenset[str] | None = frozenset()
    max_body: int | None = None


class RemoteSink(SinkSettings, ClientLogin):
    """A sink of a message protocol: its server, and the form of its messages."""

    endpoint: str | None = Field(
        None,
        description="Xid of a `producer` endpoint of the catalog; its address, options and definitions then define "
        "what is sent.",
        pattern=ENDPOINT,
    )
    missing: Literal["placeholder", "reject"] = Field(
        "placeholder",
        description="If a template variable has neither value nor default: `placeholder` writes `_`, `reject` makes "
        "the record a dead letter (`sink-rejected`).",
    )
    lineage: LineageForm = Field(
        True,
        description="Whether to add the `xrouter-*` headers or properties, in modes that have these. `separate` adds "
        "`xrouter-endpoint`, `xrouter-epoch` and `xrouter-position` in place of `xrouter-lineage`, as before this "
        "release; the next release has no `separate`.",
    )
    max_destinations: int = Field(
        10_000,
        ge=1,
        description="Maximum number of distinct destinations since startup; events for more become dead letters "
        "(`sink-rejected`).",
    )

    opener = "router.sinks.messages.definitions:open_messages"
    family: ClassVar[str]
    """The family of its protocol, as in :attr:`bindings.sending.SendingBinding.family`."""
    address_field: ClassVar[str] = "uri"
    """The key with the server's addresses."""
    template_field: ClassVar[str]
    """The key with the destination, a template."""

    @property
    def remote(self) -> RemoteSink:
        """The sink itself."""
        return self

    @property
    def unknown_commit_reason(self) -> str:
        """Why it cannot tell whether it has a batch: no target remembers batches."""
        return "a message target does not know batches"

    @property
    def sending(self) -> SendingBinding:
        """The sending side of its protocol."""
        return sending_of(self.family)

    @property
    def own_addresses(self) -> tuple[str, ...]:
        """The server's addresses in the settings; if empty, the endpoint's are used."""
        given = getattr(self, self.address_field) or ()
        return (given,) if isinstance(given, str) else tuple(given)

    @property
    def template(self) -> str:
        """The destination's template; empty if the endpoint defines it."""
        return getattr(self, self.template_field) or ""

    @property
    def client_options(self) -> Mapping[str, SecretStr]:
        """Options or headers of the client by name; some names mean secrets."""
        return {}

    @property
    def message_form(self) -> MessageForm:
        """The form of its messages."""
        return MessageForm()

    def binding(self, endpoint: Endpoint | None) -> Binding:
        """Return the sink's protocol binding."""
        return next(each for each in BINDINGS.values() if each.sending.family == self.family)

    @abstractmethod
    def publisher(self, name: str, binding: Binding, endpoint: Endpoint | None) -> Publisher:
        """Return the client; imports its library.

        Raises:
            SinkError, GatewayError: something that retrying does not fix.
        """

    def connection(self, name: str, endpoint: Endpoint | None) -> Connection:
        """Return addresses and login; addresses of the settings precede the endpoint's.

        Raises:
            SinkError: neither has an address.
        """
        uris = self.own_addresses or (endpoint.uris if endpoint else ())
        if not uris:
            raise SinkError(name, "has no address", hint="set uri, or protocoloptions.endpoints in the catalog")
        return Connection(uris, self.login, to_tls(self.tls), endpoint.options if endpoint else {})

    def destination(self, filled: TemplateFiller, *, letters: bool) -> str:
        """Return the address, with the known variables filled in."""
        sending = self.sending
        return filled(parse_address(self.template, sending), lambda value: escape_level(value, sending))

    def cluster_at(self, name: str, endpoint: Endpoint | None) -> KafkaClient | None:
        """Return the Kafka cluster of settings or endpoint; None for other protocols.

        Raises:
            SinkError: it has no brokers, or their addresses contradict each other or the settings.
        """
        return None
