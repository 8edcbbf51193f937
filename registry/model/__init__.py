"""The service model: types of groups and resources with their attributes, from a model source to checks of values."""
