"""The benchmark driver behind `bench/run`: launches every peer, checks, compares with the aims, reports."""
