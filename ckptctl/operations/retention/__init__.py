"""Retention: what is kept and what goes, and how it comes back."""
