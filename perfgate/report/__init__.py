"""What a run is told as: one sink a file. A sink that breaks is named and changes no verdict."""
