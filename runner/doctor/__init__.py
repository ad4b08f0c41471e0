"""The doctor: what a machine or a started job can do, what is wrong with it, and how to mend it."""
