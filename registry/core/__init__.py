"""The registry's operations, independent of the protocol: paths, views, writes and their effects."""
