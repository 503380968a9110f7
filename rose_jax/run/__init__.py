"""One run from task to task: trajectory, stage, features, scoring, results."""
