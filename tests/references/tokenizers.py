"""Tokenizers without a file: three as unlike one another as real ones are, for what must hold with any, and one of
transformers."""

from functools import cache
from types import SimpleNamespace
from typing import Any

from posenc.tasks.running_text import read


class ByteTokenizer:
    """One token a byte (its value + 3), after a start of text."""

    start = (1,)
    before = ""
    bos_token_id, eos_token_id = 1, 2

    def __call__(self, text: str, add_special_tokens: bool = True, verbose: bool = False) -> SimpleNamespace:
        ids = [byte + 3 for byte in (self.before + text).encode()]
        return SimpleNamespace(input_ids=[*self.start, *ids] if add_special_tokens else ids)

    def decode(self, ids, skip_special_tokens: bool = True) -> str:
        return bytes(token - 3 for token in map(int, ids) if token >= 3).decode(errors="replace")


class SpacedTokenizer(ByteTokenizer):
    """Puts a space before every text, as SentencePiece tokenizers do."""

    before = " "


class PairTokenizer(ByteTokenizer):
    """Two characters a token, so that no boundary in a text is safe; no start of text, but an end."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def __call__(self, text: str, add_special_tokens: bool = True, verbose: bool = False) -> SimpleNamespace:
        pairs = [text[i : i + 2] for i in range(0, len(text), 2)]
        ids = [self.known.setdefault(pair, len(self.known) + 3) for pair in pairs]
        return SimpleNamespace(input_ids=[*ids, 2] if add_special_tokens else ids)

    def decode(self, ids, skip_special_tokens: bool = True) -> str:
        spelled = {token: pair for pair, token in self.known.items()}
        return "".join(spelled.get(int(token), "") for token in ids)


TOKENIZERS = {cls.__name__: cls for cls in (ByteTokenizer, SpacedTokenizer, PairTokenizer)}


@cache
def small_tokenizer(vocabulary: int = 512) -> Any:
    """A byte-level BPE tokenizer, learnt from Python's language reference: any text comes back as it went in."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>"]  # 0, 1 and 2, as the small models have them
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator([read("pydoc")[:200_000]], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
