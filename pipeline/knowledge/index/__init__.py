"""Embeddings of chunks, entities and triplets, and the FAISS indexes over them (TeaRAG 4.2.3)."""
