"""``xrouter registry``: serve and manage a registry."""
