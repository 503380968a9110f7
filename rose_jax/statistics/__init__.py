"""Class statistics in feature space that several axes share: covariances, Gaussians, paired features."""
