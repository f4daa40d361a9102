"""The world's files as rows: one reader for prompt files, evaluations and training."""
