"""``xrouter batches``: unfinished batches."""
