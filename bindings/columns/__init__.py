"""Many records at once: their parts as columns, and what columns settle of their envelopes without the exact codec."""
