"""Tokenizers without a file, as unlike one another as real ones are, for what must hold with any tokenizer."""

from types import SimpleNamespace


class ByteTokenizer:
    """One token a byte (its value + 3), after a start of text."""

    start = (1,)
    before = ""

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
