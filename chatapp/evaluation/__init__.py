"""Tasks, metrics and reports: honest measurement of prompts and models."""
