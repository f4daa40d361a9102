"""The inspector: what the model reads, expects and attends to; one module a tab."""
