"""`daso-bench calibrate`: this machine, measured with real processes, as a cluster of virtual time."""
