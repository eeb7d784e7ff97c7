"""What every result can tell: its verdict, its findings, and itself as plain data."""
