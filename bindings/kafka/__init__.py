"""Kafka: codec, records as Spark columns, and clients for what Spark does not do."""
