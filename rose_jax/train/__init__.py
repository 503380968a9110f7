"""Training: losses, objectives, the one jitted step and the loop around it."""
