"""``xrouter registry``: the registry as a service, and its store by hand."""
