"""The knowledge graph: triplets of every chunk, and the entities they connect (TeaRAG 4.1)."""
