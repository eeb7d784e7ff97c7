"""Looking over a root or one checkpoint: list, show, history, resolve."""
