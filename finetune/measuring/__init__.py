"""What a model or a run is worth: metrics, results, reports."""
