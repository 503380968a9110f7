"""Readers of raw data sets, their preparation as TFDS records, downloads, and the decoded cache."""
