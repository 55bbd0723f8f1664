"""Joins search, store and execution: tune, resume, confirm."""
