"""The widgets that the chat screen is made of."""
