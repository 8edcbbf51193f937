"""CloudEvents Registry 0.4/0.5: definition groups, endpoints and schema groups, in the names and by the verbs of those.

Reads show entities of the store in their older form; writes make core requests of older bodies.
"""
