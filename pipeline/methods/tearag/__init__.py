"""TeaRAG (arXiv 2511.05385): outcome, format and evidence matching, paired by eq. 14."""
