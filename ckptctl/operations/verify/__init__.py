"""Verification: its units of work, its stages, its verdict."""
