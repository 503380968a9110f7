"""Class statistics in feature space that several axes share: covariances, moments, Gaussians, paired features."""
