"""Receive messages: inbox and gateways as one component."""
