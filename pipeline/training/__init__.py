"""SFT and DPO+SFT rounds through TRL and PEFT (TeaRAG, arXiv 2511.05385, eq. 4 and 15-17)."""
