"""The older specifications as faces over the store, each on a path of its own; ``known.py`` lists them."""
