"""Read many records at once as columns; the exact codec reads the rows that columns cannot decide."""
