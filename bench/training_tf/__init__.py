"""Training with TensorFlow as ranks see it: the works, and the libraries that they are measured with."""
