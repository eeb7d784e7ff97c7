"""PyTorch Distributed Checkpoint: its metadata and its shards."""
