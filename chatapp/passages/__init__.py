"""A folder of texts gives passages for a prompt: files found, read, cut, indexed and searched."""
