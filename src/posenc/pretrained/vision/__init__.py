# SPDX-License-Identifier: Apache-2.0
"""Pretrained vision models, of transformers and of timm, at another image size.

`models`: a model of either library, behind one interface. `tables`: its parts that depend on patch positions, and tables for
another grid. `resize`: what is done to a model, and undone. `doctor`: what is wrong with one.
"""
