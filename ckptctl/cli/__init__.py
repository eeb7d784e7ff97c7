"""The command line: parsing, rendering and exit codes; nothing else prints."""
