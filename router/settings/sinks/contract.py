"""What other modules may ask of a sink without knowing its kind.

A kind of sink is a module beside this one, a line in :data:`router.settings.sinks.kinds.KINDS`, and what it names here
as ``module:function``, which is imported when it is called: a router does not load the libraries of sinks it lacks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import SecretStr

from bindings.gateways import BrokerLogin, Connection
from bindings.parts import Part
from bindings.protocols import BINDINGS, Binding, sending_of
from bindings.sending import Publisher, Sending
from catalog.model import Endpoint
from router.errors import SinkError
from router.settings.catalogs import TlsSettings, tls_of
from router.settings.names import DestinationTemplate, escaped, parse_address
from router.settings.values import Section

if TYPE_CHECKING:
    from bindings.kafka.client import KafkaClient
    from router.settings.sinks.kafka import KafkaSink

Fault = tuple[str, str]
"""A key of the settings, and what is wrong there; it names the remedy."""
Filled = Callable[[DestinationTemplate, Callable[[str], str]], str]
"""Fills in what is known of a template, each value escaped by the function."""


class SinkSettings(Section):
    """One sink. What stands here holds for one of a place on disk that takes both events and dead letters."""

    opener: ClassVar[str]
    """Makes the sink, as :func:`router.sinks.contract.open_sink`."""
    reader: ClassVar[str] = ""
    """Reads its dead letters back, as :func:`router.letters.stores.read_table`; see ``readable``."""
    latest: ClassVar[str] = ""
    """Reads its newest dead letters, as :func:`router.letters.reading.in_table`; given where ``reader`` is."""
    retention: ClassVar[str] = ""
    """Finds dead letters that may go, as :func:`router.letters.retention.old_in_table`.

    Empty where somebody else removes letters, or nobody.
    """
    pairs: ClassVar[str] = ""
    """Makes the sink for pairs of messages, as :func:`router.sinks.pairs.open_table`; empty where it takes none."""
    tabular: ClassVar[bool] = False
    """Whether it has columns of its own: instants without the texts of times, and no dead letters among events."""
    needs_connector: ClassVar[bool] = False
    """Whether Spark needs its Kafka connector for the sink."""

    @property
    def typed(self) -> bool:
        """Whether it has columns for what the schemas of definitions say."""
        return False

    @property
    def readable(self) -> bool:
        """Whether dead letters can be read back."""
        return bool(self.reader)

    @property
    def folder(self) -> str:
        """The folder or URL that no other sink may share; empty for none."""
        return ""

    @property
    def staged_at(self) -> str:
        """The folder or URL that executors write to; empty where they write to no place of the settings."""
        return ""

    @property
    def topics(self) -> KafkaSink | None:
        """The sink itself where Spark writes its rows to topics; the driver hands batches to all others."""
        return None

    @property
    def framed(self) -> KafkaSink | None:
        """The sink itself where its bodies begin with the ids of their schemas."""
        return None

    @property
    def remote(self) -> RemoteSink | None:
        """The sink itself where it connects to somebody else's server."""
        return None

    @property
    def sends_messages(self) -> bool:
        """Whether each event becomes a message of its own, which may be refused by itself."""
        return self.remote is not None and self.topics is None

    @property
    def record_limit(self) -> int | None:
        """The most bytes of one record, headers included; None for any number."""
        return None

    @property
    def unasked(self) -> str:
        """Why it cannot be asked whether it has a batch; empty where it can."""
        return ""

    def faults(self, key: str, *, events: bool, letters: bool) -> Iterator[Fault]:
        """Yield what contradicts itself in the sink at *key*, which takes *events*, *letters*, both or nothing."""
        yield from ()

    def pair_faults(self) -> Iterator[str]:
        """Yield why it cannot take pairs of messages, with the remedy."""
        if not self.pairs:
            yield "takes no pairs; name a table (format: delta) or a Kafka topic"

    def login_faults(self, key: str) -> Iterator[Fault]:
        """Yield what contradicts itself in logins, certificates and the addresses that they are for."""
        yield from ()

    @abstractmethod
    def destination(self, filled: Filled, *, letters: bool) -> str:
        """Return where records go, as far as it is known."""


class RemoteSink(SinkSettings):
    """A sink of a message protocol: what it says of its server, and of the messages that are made for it."""

    opener = "router.sinks.messages.definitions:open_messages"
    family: ClassVar[str]
    """The family of protocols that it speaks, as in :attr:`bindings.sending.Sending.family`."""
    address_field: ClassVar[str] = "uri"
    """The key with addresses of its server."""
    template_field: ClassVar[str]
    """The key with the destination, a template."""

    if TYPE_CHECKING:  # each kind has these where the reference lists them
        endpoint: str | None
        lineage: bool
        max_destinations: int
        missing: str
        username: str | None
        password: SecretStr | None
        allow_plaintext_password: bool
        tls: TlsSettings | None

    @property
    def remote(self) -> RemoteSink:
        """The sink itself."""
        return self

    @property
    def unasked(self) -> str:
        """No target remembers batches."""
        return "a message target cannot be asked"

    @property
    def sending(self) -> Sending:
        """The sending side of its protocol."""
        return sending_of(self.family)

    @property
    def own_addresses(self) -> tuple[str, ...]:
        """The addresses of its server that the settings give; without any, those of its endpoint count."""
        given = getattr(self, self.address_field) or ()
        return (given,) if isinstance(given, str) else tuple(given)

    @property
    def template(self) -> str:
        """The destination; empty where the endpoint says it."""
        return getattr(self, self.template_field) or ""

    @property
    def client_options(self) -> Mapping[str, SecretStr]:
        """Options or headers that go to the client by their own names, which may say that they are secrets."""
        return {}

    @property
    def content_mode(self) -> str | None:
        """The CloudEvents content mode that the settings ask for; None leaves it to the definitions."""
        return None

    @property
    def least(self) -> Mapping[str, int]:
        """Parts whose numbers a message has at least."""
        return {}

    @property
    def given(self) -> tuple[Part, ...]:
        """Parts of every message for a template."""
        return ()

    @property
    def uncarried(self) -> frozenset[str]:
        """Parts that the target has no place for, though the protocol has."""
        return frozenset()

    @property
    def taken_headers(self) -> frozenset[str] | None:
        """Names, in small letters, that the client sets by itself; None where no headers of records are passed on."""
        return frozenset()

    @property
    def body_limit(self) -> int | None:
        """The most bytes of a body; None for what the target itself says."""
        return None

    def binding(self, endpoint: Endpoint | None) -> Binding:
        """Return the binding that the sink speaks, of those of its family."""
        return next(each for each in BINDINGS.values() if each.sending.family == self.family)

    def check(self, name: str, endpoint: Endpoint | None) -> None:
        """Make sure that the addresses can be connected to, as far as settings and catalog tell.

        Raises:
            SinkError: they cannot.
        """

    @abstractmethod
    def publisher(self, name: str, binding: Binding, endpoint: Endpoint | None) -> Publisher:
        """Return the client, whose library is imported here.

        Raises:
            SinkError, GatewayError: something that waiting does not repair.
        """

    def login(self) -> BrokerLogin:
        """Return as whom to connect."""
        return BrokerLogin(self.username, self.password.get_secret_value() if self.password else None)

    def connection(self, name: str, endpoint: Endpoint | None) -> Connection:
        """Return where and as whom to connect; addresses of the settings go before those of the endpoint.

        Raises:
            SinkError: neither has an address.
        """
        uris = self.own_addresses or (endpoint.uris if endpoint else ())
        if not uris:
            raise SinkError(name, "no address is known", hint="set uri, or protocoloptions.endpoints in the catalog")
        return Connection(uris, self.login(), tls_of(self.tls), endpoint.options if endpoint else {})

    def destination(self, filled: Filled, *, letters: bool) -> str:
        """Return the address, as far as it is known."""
        sending = self.sending
        return filled(parse_address(self.template, sending), lambda value: escaped(value, sending))

    def own_cluster(self) -> KafkaClient | None:
        """Return how to reach the Kafka brokers that the settings name; None where they name none."""
        return None

    def cluster_at(self, name: str, endpoint: Endpoint | None) -> KafkaClient | None:
        """Return how to reach the Kafka brokers of settings or endpoint; None for a sink of another protocol.

        Raises:
            SinkError: there are none, or their addresses contradict each other or the settings.
        """
        return None
