# SPDX-License-Identifier: Apache-2.0
"""Results as pages: figures.py draws, html.py lays out; page.html is the frame of all pages, the others are their text."""
