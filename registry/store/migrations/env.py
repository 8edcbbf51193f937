"""How Alembic runs a migration here: over the connection that the store hands in, within its transaction."""

from __future__ import annotations

from alembic import context

from registry.store.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
context.run_migrations()
