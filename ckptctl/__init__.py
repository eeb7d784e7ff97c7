"""Inspect, verify and repair the checkpoints of distributed training."""

__version__ = "0.1.0"
