"""JSON Structure: validation of bodies, columns of payloads, and sample payloads."""
