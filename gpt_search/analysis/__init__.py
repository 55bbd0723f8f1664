"""Curves, importance, figures, reports: reads studies, writes none."""
