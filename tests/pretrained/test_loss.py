"""Loss by position: a pass in chunks gives the losses of a full pass, a window those of its tokens alone."""

import pytest
import torch
from torch.nn import functional as F

from posenc.errors import InputError
from posenc.pretrained import loss_by_position
from references.small_models import small_model


def one_pass(model, ids):
    """The loss of each token but the first, from one call without a cache."""
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")


@pytest.fixture
def ids():
    return torch.randint(97, (2, 41), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("chunk", [1, 7, 40, 41, 512])
def test_chunks_change_nothing(llama, ids, chunk):
    llama.train()
    llama.model.layers[0].eval()
    before = [module.training for module in llama.modules()]
    loss = loss_by_position(llama, ids, chunk=chunk)
    assert [module.training for module in llama.modules()] == before
    assert not loss.requires_grad
    assert loss[:, 0].isnan().all()
    torch.testing.assert_close(loss[:, 1:], one_pass(llama.eval(), ids), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(loss_by_position(llama, ids[0], chunk=chunk), loss[0], equal_nan=True)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_frequencies_that_follow_the_length_are_those_of_the_full_text(kind, ids):
    """In chunks, the cached keys would have been rotated by other frequencies."""
    factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8} if kind == "longrope" else {}
    rope = {"rope_type": kind, "rope_theta": 1e4, "factor": 4.0, **factors, "original_max_position_embeddings": 24}
    model = small_model("llama", max_position_embeddings=24, rope_parameters=rope)
    expected = one_pass(model, ids)
    one_pass(model, ids.repeat(1, 3))  # a longer text must leave no trace in the model
    torch.testing.assert_close(loss_by_position(model, ids, chunk=7)[:, 1:], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("window", "stride"), [(16, None), (16, 1), (16, 15), (9, 4), (40, 3), (41, None), (2, 1)])
@pytest.mark.parametrize("chunk", [5, 512])
def test_a_window_sees_the_tokens_it_holds_and_no_others(llama, ids, window, stride, chunk):
    loss = loss_by_position(llama, ids, window=window, stride=stride, chunk=chunk)
    step = window // 2 if stride is None else stride
    for token in range(1, 41):
        end = window  # the first window that holds the token, the last one pushed back to the text's end
        while end <= token:
            end += step
        end = min(end, 41)
        start = max(end - window, 0)
        alone = one_pass(llama, ids[:, start:end])[:, token - start - 1]
        torch.testing.assert_close(loss[:, token], alone, rtol=1e-4, atol=1e-5)


def test_progress_counts_the_tokens(llama, ids):
    seen = []
    loss_by_position(llama, ids, chunk=16, progress=lambda done, count: seen.append((done, count)))
    assert seen == [(16, 41), (32, 41), (41, 41)]
    seen.clear()
    loss_by_position(llama, ids, window=16, progress=lambda done, count: seen.append(done))
    assert seen == sorted(seen)
    assert seen[-1] == 41


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((1,), {}, r"ids of shape \(1,\)"),
        ((1, 2, 3), {}, r"ids of shape \(1, 2, 3\)"),
        ((9,), {"stride": 2}, r"stride=2: needs window"),
        ((9,), {"window": 4, "stride": 4}, r"window=4, stride=4"),
        ((9,), {"window": 1}, r"window=1"),
    ],
)
def test_mistakes_are_named(llama, shape, options, message):
    with pytest.raises(InputError, match=message):
        loss_by_position(llama, torch.zeros(shape, dtype=torch.long), **options)
