"""Rewards: what a path is worth, term by term."""
