"""What ``torch.save`` writes: the zip of one tensor or of a whole state."""
