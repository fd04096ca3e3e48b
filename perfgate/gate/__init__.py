"""Numbers in, verdict out: no torch, no processes."""
