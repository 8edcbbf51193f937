"""CNCF Message Catalog 0.1 over the store: groups, definitions, numbered versions."""
