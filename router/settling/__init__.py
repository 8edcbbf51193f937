"""Which records expressions of the JVM can settle, and those expressions: no Python sees such a record."""
