"""Judging: the plan, and the Spark columns that turn rows of a source into outcomes."""
