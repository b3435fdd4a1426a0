"""Who touches the hardware."""
