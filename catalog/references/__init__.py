"""References: what they mean among the documents that were read, and beyond them."""
