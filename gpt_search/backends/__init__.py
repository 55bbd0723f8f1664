"""Backends: one optional dependency each. `base` holds the contract, `registry` finds them by name."""
