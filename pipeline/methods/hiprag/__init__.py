"""HiPRAG (arXiv 2510.07794): a reward for right search decisions; pairs by a margin of it."""
