"""Evaluation of models and runs: metrics, results, reports."""
