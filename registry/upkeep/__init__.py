"""What keeps a store small beside the service."""
