"""Every program of a run, compiled for devices that need not be there: what it needs, costs, and whether it fits."""
