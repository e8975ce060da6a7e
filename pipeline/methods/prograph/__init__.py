"""ProGraph-R1: a reward for every step, from progress towards the answer and graph structure."""
