# SPDX-License-Identifier: Apache-2.0
"""Pretrained vision models, of transformers and of timm, at another image size.

Read `libraries` (what differs between the two), `parts` (what in a model knows places), `tables` (how a table is made for
another grid), `resize` (what is done to a model, and undone), `doctor` (what is wrong with one).
"""
