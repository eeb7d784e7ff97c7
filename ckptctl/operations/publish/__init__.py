"""The commands that write records: commit, promote, quarantine, prune."""
