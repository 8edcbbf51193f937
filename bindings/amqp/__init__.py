"""AMQP 1.0: codec, receiving gateway, and sending client."""
