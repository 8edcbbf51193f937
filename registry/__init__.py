"""The registry as a service: xRegistry 1.0-rc4 over a SQL store; imported by ``router/commands/registry`` alone."""
