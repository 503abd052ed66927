# SPDX-License-Identifier: Apache-2.0
"""Comparisons of images: which class, at the resolution of training and at others."""
