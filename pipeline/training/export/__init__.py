"""Pairs and policies in the forms of other tools, each a directory with its card."""
