"""Kafka: its codec, its records as columns of Spark, and clients for all that Spark does not do."""
