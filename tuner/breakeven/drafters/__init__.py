"""Drafters ranked on finished answers: what each would have drafted at every token, without starting an engine. Pure, but for reading files.

A verified answer evaluates every drafter: verification keeps the target's own text, whoever drafted it (HedgeSpec, arXiv 2510.20064).
"""
