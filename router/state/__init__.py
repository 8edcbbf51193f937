"""The state folder: what must survive a crash, read with errors that name file and remedy."""
