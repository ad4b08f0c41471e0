#!/bin/bash

# Parameters
#SBATCH --account='chem 1'
#SBATCH --array=0-5%3
#SBATCH --contiguous
#SBATCH --cpus-per-task=8
#SBATCH --distribution=block:block
#SBATCH --exclusive
#SBATCH --gpus-per-node=4
#SBATCH --job-name=daso-bench-1
#SBATCH --mem=64G
#SBATCH --no-requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --open-mode=append
#SBATCH --output=/study/.slurm/daso-bench-1/%A_%a_0_log.out
#SBATCH --partition=gpu
#SBATCH --qos=long
#SBATCH --signal=USR2@30
#SBATCH --time=2160

# setup
module load CUDA
ulimit -n 4096

# command
export SUBMITIT_EXECUTOR=slurm
/bin/python -u -m submitit.core._submit /study/.slurm/daso-bench-1
