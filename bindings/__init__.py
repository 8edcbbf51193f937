"""Protocol bindings: convert native records to parts, receive them durably, and send messages."""
