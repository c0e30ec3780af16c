#!/bin/sh
#SBATCH --nodes=1 --exclusive --requeue --open-mode=append --signal=B:USR2@120
# A whole experiment in one allocation of a node: the launcher of this machine packs its runs there, one a core or one a
# GPU. An array starts a job for each, which small runs are not worth.
#
#     sbatch --time=4:00:00 slurm.sh experiments/quickstart.yaml
#
# Two minutes before the time limit, and when the node is wanted back, runs write checkpoints and the job queues itself
# again.
trap 'kill $!; wait $!; scontrol requeue "$SLURM_JOB_ID"; exit $?' USR2
llama-ablate run "$@" &
wait $!
