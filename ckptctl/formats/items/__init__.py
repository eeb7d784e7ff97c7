"""One stored item: its bytes, its records, its numbers, and where its tensor lies."""
