"""Training text made from tables and seeds: the tasks that the bundled model is taught.

Keep: what is measured is never taught. Which content is kept out is decided by
its hash alone, so it never depends on the seed or on what else was drawn.
"""
