# SPDX-License-Identifier: Apache-2.0
"""The text behind a name, as a corpus."""

from posenc.errors import InputError
from posenc.lab.data.corpora import CORPORA, split
from posenc.lab.data.corpus_text import Corpus
from posenc.lab.data.sources import documents, has_rows
from posenc.lab.data.tokens import HEAD, build

DATA_TOKENS = 50_000_000
"""How much of a text is read by default."""


def load(
    source: str,
    tokenizer: str = "bytes",
    *,
    packed: bool = False,
    text_column: str | None = None,
    data_tokens: int = DATA_TOKENS,
) -> Corpus:
    """The text behind a name, tokenized once.

    Args:
        source: "prose", "code" or "chinese", see `posenc.lab.data.corpora`, which are split by file and have no near-duplicates;
            "pydoc" (the language reference inside Python's standard library); the path of a file, or a
            folder of them: text, or rows (.jsonl, .parquet); "hf:NAME[:CONFIG]" for a Hugging Face dataset.
        tokenizer: "bytes"; "bpe:N", N byte pairs and bytes learned from the training part of the text; or the name or
            folder of a Hugging Face tokenizer.
        packed: remember the boundaries of documents (files, rows, pydoc's topics).
        text_column: the column of rows; None: "text", or the only one of strings.
        data_tokens: about how many tokens are read.

    Raises:
        InputError: no such text, no text in it, a tokenizer that cannot be loaded, or a package that is missing.
    """
    if text_column is not None and (source in CORPORA or not has_rows(source)):
        raise InputError(f"data={source!r} has no columns", "leave it out", text_column=text_column)
    if source in CORPORA:
        files = CORPORA[source]()
        train, test = split(files)
        return build(files.name, (*train, *test), tokenizer, packed, data_tokens, len(train))
    # a byte more than are read, or than tokens spell: none in use spells 16 in the mean
    most = data_tokens + 1 if tokenizer == "bytes" else max(HEAD, 16 * data_tokens)
    name, streamed = documents(source, text_column, most)
    return build(name, streamed, tokenizer, packed, data_tokens)


def corpus(text: bytes, name: str) -> Corpus:
    """A text as bytes: the last tenth is held out."""
    return build(name, [text], "bytes", packed=False, data_tokens=max(2, len(text)))
