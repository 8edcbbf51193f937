"""``xrouter check``: findings of a catalog and of settings."""
