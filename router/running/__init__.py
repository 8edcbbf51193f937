"""The process of a router: starting, monitoring, reloading and draining its parts."""
