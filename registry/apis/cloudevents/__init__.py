"""CloudEvents Registry 0.4/0.5: definition groups, endpoints and schema groups, with their names and methods.

Reads convert stored entities to the older format; writes convert older bodies to core requests.
"""
