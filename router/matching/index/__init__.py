"""The index: match sets of whole columns at a time."""
