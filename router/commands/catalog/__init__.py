"""``xrouter catalog``: listing, showing, converting and comparing catalogs."""
