"""The router: a catalog and settings become a plan, and batches are judged and written by it."""
