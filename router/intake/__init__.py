"""Taking messages in: the inbox and the gateways, as one thing to run."""
