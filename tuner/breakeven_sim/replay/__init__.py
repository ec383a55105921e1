"""Traces replayed through fleets of simulated engines, or of fitted laws, under policies that are compared."""
