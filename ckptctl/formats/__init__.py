"""How checkpoints lie on disk: one file per layout, and the safe readers that they share."""
