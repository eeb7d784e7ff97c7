"""What tells two checkpoints apart, and what a difference means."""
