"""Sources: which endpoints of the catalog are read, where they are, what to ask of brokers."""
