"""``xrouter schemas``: copy schemas of schema registries to disk."""
