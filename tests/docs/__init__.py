"""The documentation, tried: what it shows is run, and what it lists is compared."""
