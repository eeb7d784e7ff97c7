"""How tensors and state of ranks are cut up, and how they are cut for other ranks."""
