"""Dead letters: read them back from sinks, show them, redact them, remove them."""
