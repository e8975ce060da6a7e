"""Judges: was a search needed, and was it left out where it was (HiPRAG, arXiv 2510.07794, 3.2)."""
