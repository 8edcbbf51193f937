"""``xrouter dead-letters``: listing, showing, replaying, purging, drafting definitions."""
