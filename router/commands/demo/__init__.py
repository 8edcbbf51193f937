"""``xrouter demo``: a whole router on data of its own."""
