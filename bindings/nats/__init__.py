"""NATS: codec, receiving gateway (core and JetStream), and sending client."""
