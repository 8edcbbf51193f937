"""The kinds of sinks in the settings: one module each, which says to all others what they may ask of such a sink."""
