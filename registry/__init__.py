"""The registry as a service: xRegistry 1.0-rc4 over a SQL store; only ``router/commands/registry`` imports it."""
