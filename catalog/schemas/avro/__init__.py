"""Avro: bodies held against schemas, as columns, and made up."""
