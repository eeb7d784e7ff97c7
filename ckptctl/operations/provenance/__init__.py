"""Collecting what ties files to a step and a run."""
