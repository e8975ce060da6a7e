"""The process of a stage: start, watch, progress and end."""
