"""``xrouter schemas``: the schemas of schema registries on this disk."""
