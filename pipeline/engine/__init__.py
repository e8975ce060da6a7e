"""The stage store and the process that runs one stage."""
