"""The programs that are timed beside ours, each run once a rank by the harness."""
