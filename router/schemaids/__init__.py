"""Schemas by id: asked of schema registries, kept on disk, and mirrored for use without them."""
