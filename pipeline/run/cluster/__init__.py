"""Drivers: processes that run one stage on a cluster (Ray, Slurm) for an executor."""
