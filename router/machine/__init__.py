"""What the machine gives: memory, descriptors, and how large a batch may be for it."""
