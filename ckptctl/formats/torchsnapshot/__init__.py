"""torchsnapshot's manifest."""
