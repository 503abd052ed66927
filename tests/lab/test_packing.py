"""Packed sequences: equal to their documents apart, drawn from all of the text, tested inside documents."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from posenc import InputError
from posenc.lab.data import Corpus, Text, draw, load, window_ends
from posenc.lab.experiment import Run
from posenc.lab.measure import measure
from posenc.lab.train import build, train


def documents(*lengths):
    """Tokens 0, 1, 2, ..., so that a token is its own place."""
    starts = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()[:-1]])
    return Text(torch.arange(sum(lengths), dtype=torch.int32), starts)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", ["none", "sinusoidal", "learned", "rope", "t5", "alibi", "rope+alibi"])
def test_packed_training_is_training_on_the_documents_apart(name, tiny):
    settings = replace(tiny, packed=True, num_layers=2)
    text = documents(5, 1, 9, 40, 3, 3, 2, 30, 7, 4)
    text = Text(text.tokens % 251, text.starts)
    batch = draw(text, settings, generator())
    model = build(Run(name, 0, settings, "")).double()
    loss = F.cross_entropy(model(batch.inputs, batch.positions).flatten(0, 1), batch.targets.flatten())
    loss.backward()
    packed = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}

    model.zero_grad(set_to_none=True)
    alone = []
    for row, owners in zip(batch.tokens, batch.documents, strict=True):
        for document in owners.unique():
            tokens = row[owners == document][None]
            if tokens.shape[1] > 1:
                alone.append(F.cross_entropy(model(tokens[:, :-1])[0], tokens[0, 1:], reduction="none"))
    apart = torch.cat(alone).mean()
    apart.backward()
    assert (batch.targets >= 0).sum() == len(torch.cat(alone)) < batch.targets.numel()
    torch.testing.assert_close(loss, apart)
    for key, p in model.named_parameters():
        if key in packed:
            torch.testing.assert_close(packed[key], torch.zeros_like(p) if p.grad is None else p.grad, msg=key)


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.integers(0, 100))
def test_sequences_start_where_documents_do_and_are_a_slice_of_the_text(lengths, seed):
    from lab.conftest import TINY

    settings = replace(TINY, packed=True)
    text = documents(*lengths, 20)
    batch = draw(text, settings, generator(seed))
    assert torch.equal(batch.tokens, batch.tokens[:, :1] + torch.arange(settings.length + 1))
    starts = text.starts.tolist()
    for first, owner in zip(batch.tokens[:, 0].tolist(), batch.documents[:, 0].tolist(), strict=True):
        assert (first - starts[owner]) % settings.length == 0
    expected = [[max(s for s in starts if s <= place) for place in row] for row in batch.tokens.tolist()]
    assert text.edges[batch.documents].tolist() == expected
    where = batch.positions.q
    assert where[:, 0].tolist() == [0] * settings.batch_size
    new = batch.documents[:, 1:-1] != batch.documents[:, :-2]
    assert torch.equal(where[:, 1:], torch.where(new, 0, where[:, :-1] + 1))


def test_passages_lie_inside_documents_or_the_report_says_so(tiny):
    settings = replace(tiny, packed=True)  # 4 windows of 8 targets, up to 32 tokens of context
    long = documents(10, 45, 31, 33, 70, 3)
    ends = window_ends(long, settings)
    first = ends - settings.longest
    assert torch.equal(long.document(first), long.document(ends))
    assert set(long.document(ends).tolist()) <= {1, 3, 4}
    assert ends.diff().min() >= settings.targets
    assert int(first.min()) == 10
    assert int(ends.max()) == len(long) - 4
    short = documents(*[20] * 20)
    assert window_ends(short, settings).tolist() == window_ends(short.tokens, tiny).tolist()
    (note,) = settings.limits([], Corpus("", "", short, short, packed=True))
    assert "cross the ends of documents" in note
    with pytest.raises(InputError, match=r"200 bytes are too short to test at 32 tokens with 4 windows"):
        settings.check_data(Corpus("", "", documents(*[20] * 8), documents(20, 20), packed=True))


def test_a_packed_run_trains_and_is_tested(tiny):
    corpus = load("pydoc", packed=True)
    settings = replace(tiny, packed=True)
    settings.check_data(corpus)
    run = Run("rope", 0, settings, corpus.digest)
    cell = measure(run, corpus)
    assert cell.losses == measure(run, corpus).losses
    assert cell.losses != measure(replace(run, settings=tiny), corpus).losses
    model, _ = train(run, corpus.train)
    scores = settings.evaluate(model, settings.variants("rope", model.encoding)[0], corpus.test)
    end = int(window_ends(corpus.test, settings)[1])
    tokens = corpus.test.tokens[end - 32 : end + 1].long()[None]
    alone = F.cross_entropy(model(tokens[:, :-1])[0], tokens[0, 1:], reduction="none")[-8:].mean()
    assert scores.paired[2][1] == pytest.approx(alone.item(), rel=1e-5)


def test_positions_and_targets_are_those_of_transformers_flattening(tiny):
    transformers = pytest.importorskip("transformers")
    settings = replace(tiny, packed=True, length=64)
    batch = draw(documents(5, 1, 9, 40, 3, 3, 2, 30, 7, 4, 90), settings, generator(4))
    collate = transformers.DataCollatorWithFlattening()
    for tokens, owners, where, targets in zip(*batch[:2], batch.positions.q, batch.targets, strict=True):
        apart = [{"input_ids": tokens[owners == document].tolist()} for document in owners.unique()]
        theirs = collate(apart)
        assert theirs["input_ids"][0].tolist() == tokens.tolist()
        assert theirs["position_ids"][0, :-1].tolist() == where.tolist()
        assert theirs["labels"][0, 1:].tolist() == targets.tolist()  # theirs are shifted by the model


def test_documents_of_one_token_leave_nothing_to_predict(tiny):
    settings = replace(tiny, packed=True)
    ones, some = documents(*[1] * 900), documents(*[1] * 300, 2, *[1] * 300)
    with pytest.raises(InputError, match=r"packed=True: no document of ones has two bytes"):
        settings.check_data(Corpus("ones", "", ones, documents(200), packed=True))
    settings.check_data(Corpus("", "", some, documents(200), packed=True))
    few = Text((some.tokens % 251).to(torch.uint8), some.starts)
    _, losses = train(Run("rope", 0, settings, ""), few)  # most batches have no target, which is no divergence
    assert 0 in losses


def test_the_cut_is_where_a_document_starts_if_one_starts_near(tmp_path):
    for number, size in enumerate((700, 140, 160)):
        (tmp_path / f"{number}.txt").write_text(f"{number}" * size)
    corpus = load(str(tmp_path), packed=True)
    assert (len(corpus.train), len(corpus.test), corpus.facts()["documents"]) == (840, 160, 3)
    assert len(load(str(tmp_path)).test) == pytest.approx(100, abs=1)
    (tmp_path / "2.txt").write_text("2" * 400)  # it starts too early: the cut parts it
    assert len(load(str(tmp_path), packed=True).test) == 124
