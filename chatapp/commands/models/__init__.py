"""`chatapp models`: list, describe, download, export and remove models."""
