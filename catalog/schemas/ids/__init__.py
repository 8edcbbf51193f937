"""Schemas by the ids that schema registries of Confluent's API give them, as frames of bodies carry those."""
