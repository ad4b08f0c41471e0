"""Slurm: what the batch system is asked, how its answers read, and what a job of ours looks like to it."""
