"""What ``tools/test`` and ``tools/lint`` share: running steps (``runner``) and reading their logs (``results``)."""
