"""Augmentation inside jit: crops, colour, warps, policies, views, and the recipes made of them."""

from rose_jax.data.augment.recipes import (
    NORMALISATION,
    TRAIN,
    Normalisation,
    eval_transform,
    normalise,
    train_transform,
)

__all__ = ["NORMALISATION", "TRAIN", "Normalisation", "eval_transform", "normalise", "train_transform"]
