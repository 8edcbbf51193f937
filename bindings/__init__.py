"""Protocols: native records as parts, what receives them durably, and what sends them."""
