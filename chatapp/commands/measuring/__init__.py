"""`chatapp eval` and `chatapp experiment`: what answers to prompts are worth, and depend on."""
