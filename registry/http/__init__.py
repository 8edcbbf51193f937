"""The HTTP face: requests read, access checked, answers written (``http.md``)."""
