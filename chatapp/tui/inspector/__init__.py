"""The inspector: input, predictions and attention of a model; one module per tab."""
