"""``xrouter emit``: records made from a definition, printed or sent."""
