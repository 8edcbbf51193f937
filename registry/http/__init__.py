"""HTTP: parses requests, checks access, and writes responses (``http.md``)."""
