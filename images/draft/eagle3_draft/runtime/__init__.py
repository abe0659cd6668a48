"""What every container runs: the first process and its child, progress for the log, the end of a pod, and which of several pods this is."""
