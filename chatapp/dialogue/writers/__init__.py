"""What writes a chat as the text that a model continues."""
