"""Spark and its JVM: jars, session, start, death and signals."""
