"""XML Schema: validation of bodies, and sample payloads."""
