"""Performance figures, each a ratio or a count measured in one run on this machine: `make bench`."""
