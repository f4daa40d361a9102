"""The keys of a configuration file, and their meaning."""
