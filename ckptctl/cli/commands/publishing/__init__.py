"""Commands that write records, or delete."""
