"""Metrics of every policy, tests of their differences, and the report."""
