# SPDX-License-Identifier: Apache-2.0
"""Real text as tokens: Python's language reference, files and folders, streamed datasets; bytes or any tokenizer."""

from posenc.lab.data.corpus_text import Corpus, Text, TextBatch, draw, inside_documents, window_ends
from posenc.lab.data.load_text import corpus, load

__all__ = ["Corpus", "Text", "TextBatch", "corpus", "draw", "inside_documents", "load", "window_ends"]
