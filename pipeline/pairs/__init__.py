"""Preference pairs: selection, step pairs and the rejection funnel."""
