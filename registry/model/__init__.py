"""The model: group and resource types with their attributes, compiled from a model source."""
