"""``xrouter emit``: generate records of a definition, and print or send them."""
