"""Which step and which run a file is of: evidence, and how it is weighed."""
