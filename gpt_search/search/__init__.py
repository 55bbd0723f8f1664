"""Strategies, the loop that drives them, simulation, and planted landscapes."""
