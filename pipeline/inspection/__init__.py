"""Look at what the stages wrote: masks, pairs and trajectories."""
