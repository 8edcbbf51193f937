"""JSON Structure: bodies held against schemas, as columns, and made up."""
