"""Roll out policies: the sampler, partial trajectories, turns, and importers of outputs."""
