"""The commands, one file per group. Heavy modules are imported inside the command that
needs them."""
