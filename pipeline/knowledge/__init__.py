"""Documents, their graph and index, and retrieval from them."""
