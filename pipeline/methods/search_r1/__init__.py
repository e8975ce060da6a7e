"""Search-R1 (arXiv 2503.09516): an outcome reward; trajectories are paired by a margin of it."""
