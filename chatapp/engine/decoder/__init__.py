"""Decoders from their formulas."""
