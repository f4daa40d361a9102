"""Writers: render a chat as the text that a model continues."""
