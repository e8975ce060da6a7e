"""Everything about a run that can be checked before it starts, in seconds and without loading a model.

Each module checks one thing: a function takes the configuration, and where it matters the machine, and
yields its faults. A fault is one sentence with what is wrong, what was expected and what to do. No check
stops at its first fault or writes anything, and only that of gated models uses the network.
"""
