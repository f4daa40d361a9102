"""The model for other programs, over OpenAI's protocol."""
