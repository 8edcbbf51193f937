"""Read AsyncAPI 2 and 3: ``document`` walks a document, ``reading`` translates it into xRegistry 1.0."""
