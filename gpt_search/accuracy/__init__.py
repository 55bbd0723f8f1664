"""Losses, golden data and the gate: is an engine right?"""
