"""Evaluation: the compiled plan, and the outcomes of source rows as Arrow columns and Spark rows."""
