"""The benchmark on a GPU: what drives it needs no PyTorch, what its ranks run does. See `bench/README.md`."""
