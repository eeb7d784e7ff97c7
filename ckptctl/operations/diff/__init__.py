"""Comparing two checkpoints."""
