"""The chat screen: its parts, commands and dialogs."""
