"""Replication between catalogs (Message Catalog 0.1, section 5): they exchange changes until they converge."""
