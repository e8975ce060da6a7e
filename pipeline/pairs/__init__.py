"""Preference pairs, and what became of every path that is in none."""
