"""The knowledge graph (TeaRAG 4.1) and the hypergraph (ProGraph-R1 3.1)."""
