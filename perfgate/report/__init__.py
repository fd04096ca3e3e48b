"""What a run is told as: one sink a file. A sink that breaks warns and changes no verdict."""
