"""Comparisons of images: which class, at the resolution of training and at others."""
