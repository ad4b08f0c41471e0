"""`launcher=slurm`: submission, batch job, srun and queue."""
