"""Schema ids: looked up in schema registries, cached on disk, and mirrored for offline use."""
