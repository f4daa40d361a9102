"""Tasks, metrics and reports: measurement of prompts and models."""
