"""Supervised training examples from decomposed questions (TeaRAG, arXiv 2511.05385, 4.3.1)."""
