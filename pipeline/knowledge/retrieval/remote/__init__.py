"""Retrieval over HTTP: server, client, request batching and wire format."""
