"""AMQP 1.0: its codec, the gateway that receives, the clients that send."""
