"""What JSON Schema and JSON Structure share: composition, references, values of bodies."""
