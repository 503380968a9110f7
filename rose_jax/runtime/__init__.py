"""What survives and scales: files, checkpoints, workdirs, hosts, devices, progress."""
