"""What ``tools/test`` is made of: steps and their order (``steps``), running them (``runner``), reading logs (``results``)."""
