"""Lectures as files: what a step shows, whether it still does, and models that a lesson teaches."""
