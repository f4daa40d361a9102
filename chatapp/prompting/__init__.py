"""Messages, templates and prompts as text. Nothing here depends on tensors or screens."""
