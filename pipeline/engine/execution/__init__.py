"""Stages on a cluster: Ray and Slurm."""
