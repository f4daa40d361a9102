"""Creation of the bundled model: generators, recipes, report."""
