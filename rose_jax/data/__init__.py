"""Images in: sources, scenario, batches, augmentation."""
