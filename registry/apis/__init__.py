"""APIs of older specifications over the same store, each at its own path; ``apis.py`` lists them."""
