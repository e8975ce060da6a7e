"""Places and resources for a stage's process: leases of this machine, Ray, and Slurm."""
