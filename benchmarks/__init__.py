"""Measurements: each script runs ours and the peer side by side and prints a table."""
