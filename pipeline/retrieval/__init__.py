"""Retrieval for a subquery: semantic, graph, and both merged by KAG and PageRank (TeaRAG 4.2)."""
