"""The life of a batch from Spark to its commit: attempts, holding, parts, bounds in bytes."""
