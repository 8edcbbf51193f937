"""The commands of ``xrouter``, one module each."""
