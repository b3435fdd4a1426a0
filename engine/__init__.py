"""Who drives a run."""
