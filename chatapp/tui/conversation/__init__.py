"""A conversation on threads: its model, its session, its turns."""
