"""Text only: messages, templates and prompts. Nothing here knows a tensor or a screen."""
