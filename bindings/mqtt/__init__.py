"""MQTT 3.1.1 and 5: their codec, the gateway that receives, the client that sends."""
