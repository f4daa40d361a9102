"""Combines prompting and engine: the dialogue loop and the store of chats."""
