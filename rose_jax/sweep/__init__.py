"""Many runs of the ordinary command, one per device: seeds, settings and values of options in one call."""
