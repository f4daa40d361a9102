"""What every room may use: text made safe, files of users, settings, validation."""
