"""Routes: which sinks take a record, under which name, and what is too large for them."""
