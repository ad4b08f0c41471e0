#!/bin/bash

# Parameters
#SBATCH --cpus-per-task=1
#SBATCH --job-name=daso-bench-1
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --open-mode=append
#SBATCH --output=/study/.slurm/daso-bench-1/%j_0_log.out
#SBATCH --requeue
#SBATCH --signal=USR2@120
#SBATCH --time=10

# command
export SUBMITIT_EXECUTOR=slurm
/bin/python -u -m submitit.core._submit /study/.slurm/daso-bench-1
