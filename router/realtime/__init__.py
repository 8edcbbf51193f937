"""Real-time mode: records that expressions settle are sent on as they come, the rest by way of a topic of its own."""
