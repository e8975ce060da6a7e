"""Documents, their chunks, and questions in one record type (TeaRAG 4.1, table 4)."""
