"""What tests lean on: real brokers, free ports, and waiting for a condition."""
