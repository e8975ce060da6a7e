"""Trajectories as conversations with tool calls, through the model's own chat template."""
