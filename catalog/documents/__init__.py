"""Documents: fetched within limits, parsed, and put together to one catalog."""
