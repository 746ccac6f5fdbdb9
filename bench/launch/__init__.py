"""What ranks run when launchers are compared: one allreduce of four bytes, or lines without pause."""
