"""What Horovod's framework modules have in common."""
