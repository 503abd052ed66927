"""stories15M as the tests use it: tokenizer and greedy text are its authors', samples have its distribution."""

from itertools import pairwise

import pytest
import torch

from references import stories15m


@pytest.fixture(scope="module")
def model():
    stories15m.require()
    return stories15m.load()


def merged(text: str) -> list[int]:
    """llama2.c's encoder: characters, then again and again the pair whose union is the earliest piece."""
    tokenizer, ids = stories15m.tokenizer(), []
    for character in " " + text:
        known = tokenizer.token_to_id(character)
        ids += [known] if known is not None else [byte + stories15m.BYTES[0] for byte in character.encode()]
    while True:
        unions = [tokenizer.id_to_token(a) + tokenizer.id_to_token(b) for a, b in pairwise(ids)]
        ranks = [(tokenizer.token_to_id(union), at) for at, union in enumerate(unions) if tokenizer.token_to_id(union)]
        if not ranks:
            return ids
        union, at = min(ranks)
        ids[at : at + 2] = [union]


def test_the_tokenizer_is_llama2_cs():
    tokenizer = stories15m.tokenizer()
    for text in ("Once upon a time, there was a little girl named Lily.", "Zoë's 3 trees\n\nfell,  你 at 10:15", "x"):
        ids = tokenizer.encode(text).ids
        assert ids == merged(text)
        assert tokenizer.decode(ids) == text


def test_it_tells_stories(model):
    generated = model.generate(torch.tensor([[stories15m.BOS]]), max_new_tokens=27, do_sample=False)[0]
    want = "Once upon a time, there was a little girl named Lily. She loved to play outside in the sunshine. One day"
    assert stories15m.tokenizer().decode(generated.tolist()) == want


def test_its_texts_are_drawn_from_its_own_distribution(model):
    text = stories15m.sample(model, 16, 256, seed=1)
    assert torch.equal(text, stories15m.sample(model, 16, 256, seed=1))
    with torch.no_grad():
        scores = model(text).logits[:, :-1].log_softmax(-1)
    loss = -scores.gather(-1, text[:, 1:, None])[..., 0]
    entropy = -(scores.exp() * scores).sum(-1)
    spread = ((scores.exp() * scores.square()).sum(-1) - entropy.square()).mean() / loss.numel()
    assert abs(loss.mean() - entropy.mean()) < 4 * spread.sqrt()  # the loss of a sample has the entropy as its mean
    assert 0.9 < entropy.mean() < 1.25
