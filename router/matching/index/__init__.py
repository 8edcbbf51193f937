"""The match index: finds the matching definitions of all rows of a batch at once."""
