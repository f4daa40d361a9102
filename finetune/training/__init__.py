"""A run: its set-up, trainer, optimizer, checkpoints, record and export."""
