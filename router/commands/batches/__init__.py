"""``xrouter batches``: what is begun and not finished, and setting it aside."""
