"""What ckptctl does: functions that return data and never print."""
