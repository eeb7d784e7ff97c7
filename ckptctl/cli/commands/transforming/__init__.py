"""Commands that write another checkpoint."""
