"""What a checkpoint is: plain Python, no input or output."""
