"""What specifications say of each protocol: its properties, their types, options of channels."""
