"""The catalog that the settings name, loaded."""

from __future__ import annotations

from catalog.errors import DocumentError
from catalog.load import load
from catalog.model import Catalog
from router.errors import CatalogUnavailable
from router.settings import Settings
from router.settings.catalogs import fetcher_of


def read_catalog(settings: Settings) -> Catalog:
    """Load the catalog of the settings.

    Raises:
        CatalogUnavailable: nothing of it can be read, or nothing in it can be used.
    """
    read = settings.catalog
    try:
        catalog = load(read.source, fetcher=fetcher_of(settings), base_uri=read.base_uri)
    except DocumentError as error:
        unavailable = CatalogUnavailable(f"catalog: {error}", hint=error.hint or "correct catalog.source")
        unavailable.awaited = error.file if error.transient else ""
        raise unavailable from error
    if not catalog.definitions:
        sources = ", ".join(settings.catalog.source)
        raise CatalogUnavailable(
            f"catalog {sources} has no usable message definition", hint="run `xrouter check` on it"
        )
    return catalog
