"""The properties and channel options of each protocol, from the specifications."""
