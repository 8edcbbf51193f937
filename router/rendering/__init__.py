"""Records and events as Arrow columns and as JSON text, a whole array at a time; pure functions without Spark."""
