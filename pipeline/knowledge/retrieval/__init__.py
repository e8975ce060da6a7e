"""Retrieval of chunks, triplets (TeaRAG 4.2) and hyperedges (ProGraph-R1 3.2) for a subquery."""
