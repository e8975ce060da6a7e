"""R1-Searcher (arXiv 2503.05592), for imported outputs and as a released model to compare with."""
