"""Payloads made up: the choices behind one, common to all families of schemas."""
