"""Reading pickles without running anything, and writing plain ones."""
