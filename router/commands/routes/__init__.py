"""``xrouter routes``: who goes where, before any record."""
