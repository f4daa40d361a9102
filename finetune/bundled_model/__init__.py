"""How the bundled model is made: generators, recipes, report."""
