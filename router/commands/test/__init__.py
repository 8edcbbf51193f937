"""``xrouter test``: cases beside a catalog, what they exercise of it, and cases made of records."""
