"""One file per framework: which files make one of its checkpoints."""
