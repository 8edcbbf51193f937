"""HTTP: codec, server, receiving gateway, and sending client."""
