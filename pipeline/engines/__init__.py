"""Language-model engines behind one interface: requests in, finished segments out."""
