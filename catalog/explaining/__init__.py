"""For people: where each value of a definition comes from, and what there is at an xid."""
