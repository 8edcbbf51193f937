"""Replication between catalogs (Message Catalog 0.1, section 5): changes go to and fro until all have the same."""
