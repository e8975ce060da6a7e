"""Checks of a run before it starts: they take seconds and load no model.

Each module checks one thing: a function takes the configuration, and if necessary the machine, and
yields its faults. A fault is one sentence: the error, the expected value and the remedy. No check
stops at its first fault or writes anything, and only the check of gated models uses the network.
"""
