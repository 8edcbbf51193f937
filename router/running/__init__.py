"""The process: starting, watching, reloading and draining everything that has a life."""
