"""AsyncAPI 2 and 3: documents read as xRegistry 1.0 (``reading``), and catalogs written as AsyncAPI (``writing``)."""
