"""NATS: its codec, the gateway that receives from JetStream, the client that sends."""
