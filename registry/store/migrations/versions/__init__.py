"""One module for each step; the newest is what :mod:`registry.store.engine` says."""
