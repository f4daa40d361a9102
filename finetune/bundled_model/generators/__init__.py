"""Training text from tables and seeds: the tasks of the bundled model.

Invariant: test content is never used in training. Only the hash of a content decides whether it is
held out, never the seed or other draws.
"""
