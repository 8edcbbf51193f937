"""Alembic environment: migrations run on the store's connection, within its transaction."""

# Small: Alembic requires a file of this name.

from __future__ import annotations

from alembic import context

from registry.store.engine import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
context.run_migrations()
