"""Files that several stages read or write."""
