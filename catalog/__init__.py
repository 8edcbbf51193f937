"""Read catalogs of any dialect into one model. Imports neither Spark nor a broker client."""

from catalog.extras import MissingExtraError

__all__ = ["MissingExtraError"]
