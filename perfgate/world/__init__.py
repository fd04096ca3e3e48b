"""Ranks: started, driven, watched and cleared away."""
