"""MQTT 3.1.1 and 5: codec, receiving gateway, and sending client."""
