"""Catalogs: documents of any dialect become one model. Knows neither Spark nor a client of a broker."""
