"""Writing a checkpoint for another number of ranks."""
