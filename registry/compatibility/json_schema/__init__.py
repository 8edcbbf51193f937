"""Whether all values of one JSON schema are values of another: proven, refuted by a value, or left undecided."""
