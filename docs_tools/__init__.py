"""Tools for the documentation: generated pages, the reference of the Python API, screenshots."""
