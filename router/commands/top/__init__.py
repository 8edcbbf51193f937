"""``xrouter top``: what a running router says of itself, in a terminal."""
