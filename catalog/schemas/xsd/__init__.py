"""XML Schema: bodies held against schemas, and made up."""
