"""The durable inbox of the push protocols. The Spark source is in :mod:`bindings.inbox.source`."""
