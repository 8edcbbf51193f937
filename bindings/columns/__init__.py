"""Reads many records at once as columns. The exact codec reads rows that columns cannot decide."""
