"""How Alembic runs a migration here: over the connection that the store hands in, within its transaction."""

# Small: Alembic wants it in a file of this name.

from __future__ import annotations

from alembic import context

from registry.store.engine import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
context.run_migrations()
