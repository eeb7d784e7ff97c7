"""What tensors and values hold, whatever their sharding."""
