"""Timing, inside the ranks."""
