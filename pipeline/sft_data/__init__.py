"""Supervised paths built from decomposed questions (TeaRAG 4.3.1)."""
