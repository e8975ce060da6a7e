"""Where and with what a stage's process runs: leases of this machine, and the clusters Ray and
Slurm."""
