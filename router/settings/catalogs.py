"""The section of the catalog: where it is read from, how often, and who we are there."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from pydantic import Field, SecretStr

from catalog.documents.certificates import Certificates
from catalog.documents.connecting import origin_of
from catalog.documents.fetching import Fetcher
from catalog.documents.logins import Login, Logins
from catalog.documents.reach import Reach
from catalog.documents.tokens import TokenSource
from router.settings.logins import PLAIN_TEXT, TlsSettings, login_faults, path_of
from router.settings.section import Section
from router.settings.values import ENDPOINT, Duration, Texts

if TYPE_CHECKING:
    from router.settings.model import Settings


class CatalogLogin(Section):
    """Who we are to one registry."""

    url: str = Field(
        description="Scheme, host and port of the registry; nothing else is shown the login.",
        pattern=r"^[Hh][Tt][Tt][Pp][Ss]?://[^\s/?#@\\]+/?$",
    )
    bearer: SecretStr | None = Field(None, description="Bearer token, by reference.")
    bearer_file: str | None = Field(None, description="File of the bearer token; a token that changes is taken anew.")
    username: str | None = Field(None, description="User name, or client id at `token_endpoint`.")
    password: SecretStr | None = Field(None, description="Password or client secret, by reference.")
    token_endpoint: str | None = Field(
        None,
        description="URL that gives tokens for `username` and `password` (OAuth 2 client credentials).",
        pattern=r"^https?://[^\s/?#@\\]+(?:/[^\s#]*)?$",
    )
    token_scope: str | None = Field(None, description="Scope asked for.")
    token_ca: str | None = Field(None, description="Authorities of `token_endpoint`, PEM; unset trusts the system's.")
    tls: TlsSettings | None = Field(None, description="Certificates of the connection.")


class CatalogSettings(Section):
    """Where the catalog is read from, and how often."""

    source: Texts = Field(
        ("./catalog.xreg.json",), description="File, folder or URL of the catalog, or a list of them."
    )
    base_uri: str = Field(
        "",
        description="Address of the registry that the catalog is of, where it names none; `dataschema` is below it.",
        pattern=r"^(?:https?://[^\s/?#]+[^\s?#]*)?$",
    )
    poll: Duration = Field(timedelta(seconds=5), description="How often changes are looked for; 0 is never.")
    events: str | None = Field(
        None,
        description="xid of the source whose messages say that the catalog changed: the router looks at once.",
        pattern=ENDPOINT,
    )
    on_incompatible: Literal["warn", "sources", "refuse"] = Field(
        "sources",
        description=(
            "What becomes of a changed catalog by which records would no longer reach their definition, or consumers "
            "miss something. `refuse`: it is refused, and the last good one stays. `sources`: it is refused when it "
            "leaves a source without any candidate, else it takes effect and the log says so. `warn`: it takes effect."
        ),
    )
    shadow: Texts = Field(
        (),
        description=(
            "File, folder or URL of a catalog that judges beside the active one and only counts what it would change, "
            "or a list of them."
        ),
    )
    shadow_share: float = Field(
        0.25,
        gt=0,
        le=10,
        description="Time of workers for the shadow, as a part of what judging takes there; 3 mostly covers all.",
    )
    network: bool = Field(True, description="Whether references and schemas may be fetched from other hosts.")
    max_shrink: float = Field(
        0.5,
        ge=0,
        le=1,
        description=(
            "Share of its definitions that the catalog, a document or an endpoint may lose before a second look; "
            "1 is all."
        ),
    )
    allow_addresses: Texts = Field(
        (), description="Hosts and networks that references may lead to though they are not public; `*` is all."
    )
    logins: tuple[CatalogLogin, ...] = Field((), description="Who we are to registries that ask.")
    allow_plaintext_password: bool = Field(False, description=PLAIN_TEXT)


def fetcher_of(settings: Settings) -> Fetcher:
    """Return what reads the catalog of the settings once.

    Raises:
        ValueError: an allowed address that looks like a network is none.
    """
    read = settings.catalog
    return Fetcher(network=read.network, reach=Reach(read.allow_addresses), logins=logins_of(settings))


def logins_of(settings: Settings) -> Logins:
    """Return the logins of a catalog, without a token as yet; its schemas may be in a schema registry."""
    return Logins(map(login_of, (*settings.catalog.logins, *settings.schema_registries.values())))


def catalog_login_faults(settings: CatalogSettings) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for each contradiction in the logins; a fault names the remedy and no secret."""
    seen: set[str] = set()
    for index, login in enumerate(settings.logins):
        key = f"catalog.logins.{index}"
        try:
            origin = origin_of(login.url)
        except ValueError as error:
            yield f"{key}.url", f"is no address: {error}; correct it"
            continue
        if origin in seen:
            yield f"{key}.url", f"{origin} has a login already; keep one"
        seen.add(origin)
        yield from one_login_faults(key, login)
    for key, sources in (("catalog.source", settings.source), ("catalog.shadow", settings.shadow)):
        for source in sources:
            if "@" in source.partition("://")[2].partition("/")[0] and _origin(source) in seen:
                yield key, "has a user in its URL, and catalog.logins has a login for it; keep one"


def one_login_faults(key: str, login: CatalogLogin, *, needed: bool = True) -> Iterator[tuple[str, str]]:
    """Yield ``(key, fault)`` for each contradiction in one login, which may show nothing unless it is *needed*."""
    ways = [name for name in ("bearer", "bearer_file", "username") if getattr(login, name) is not None]
    if len(ways) > 1:
        yield f"{key}.{ways[1]}", f"and {ways[0]} are two ways to log in; keep one"
    if needed and not ways and login.tls is None:
        yield key, "shows nothing; give it bearer, bearer_file, username or tls"
    yield from login_faults(key, login.username, login.password is not None)
    if login.token_endpoint is None:
        for name in ("token_scope", "token_ca"):
            if getattr(login, name) is not None:
                yield f"{key}.{name}", "has no use without token_endpoint; add it, or leave this out"
    elif login.username is None:
        yield f"{key}.username", "is missing beside token_endpoint; give the client id and its secret"
    if login.tls is not None and login.url.lower().startswith("http:"):
        yield f"{key}.tls", "has no use with http://; write https:// or leave out tls"
    if login.tls is not None and login.tls.key is not None and login.tls.cert is None:
        yield f"{key}.tls.cert", "is missing beside key; add it"


def _origin(source: str) -> str:
    try:
        return origin_of(source)
    except ValueError:
        return ""


def login_of(login: CatalogLogin) -> Login:
    """Return who we are to one registry."""
    secret = login.password.get_secret_value() if login.password is not None else ""
    user = None if login.username is None else (login.username, secret)
    tokens = None
    if user is not None and login.token_endpoint is not None:
        authorities = Certificates(path_of(login.token_ca))
        tokens = TokenSource(login.token_endpoint, *user, login.token_scope or "", authorities)
    tls = login.tls or TlsSettings()
    return Login(
        origin_of(login.url),
        basic=user if tokens is None else None,
        bearer=login.bearer.get_secret_value() if login.bearer is not None else "",
        bearer_file=path_of(login.bearer_file),
        tokens=tokens,
        certificates=Certificates(path_of(tls.ca), path_of(tls.cert), path_of(tls.key)),
    )
