"""Keys and values that are kept, so that no token is computed twice."""
