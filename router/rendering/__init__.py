"""Records and events as Arrow columns and JSON texts, rendered a whole array at a time without Spark."""
