"""`chatapp inspect`: a close look at what a model makes of a text."""
