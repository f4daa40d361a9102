"""Marries prompting and engine: the dialogue loop and the store of chats."""
