"""What a config file may say, and what it means."""
