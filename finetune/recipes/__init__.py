"""Recipes: configurations and data builders that can be run as they stand."""
