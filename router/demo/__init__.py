"""The demonstration: the whole router on embedded defaults, fed over HTTP."""
