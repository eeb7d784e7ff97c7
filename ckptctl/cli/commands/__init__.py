"""One file per command, under the command's name."""
