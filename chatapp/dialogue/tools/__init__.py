"""Programs that a model may call: those built in, and the user's own."""
