"""Documents cut into chunks, and questions of every data set in one shape (TeaRAG 4.1, table 4)."""
