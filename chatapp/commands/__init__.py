"""The commands, one file a group. What is heavy is imported inside the command that needs it."""
