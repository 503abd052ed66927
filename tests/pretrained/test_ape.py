"""APE against loops in float64 and against transformers' own model under a mask of contexts that do not see each other."""

import math

import pytest
import torch
from torch.testing import assert_close

import posenc
from posenc.errors import InputError
from posenc.pretrained.ape import Parallel, ape_generate, attend
from references.small_models import small_model

CONTEXTS = ["w3 w4 w5 w6 w7 w8", "w20", "w40 w41 w42", "w60 w61 w62 w63 w64 w65 w66 w67 w68"]
TEMPLATE = "w1 w2 {context} w30 {question} w31"


def loops(q, k, v, parallel, scale):
    """The authors' expression, a query and a key at a time: log-sum-exps of contexts, at 1 / T, times S T, beside the others'."""
    out = torch.zeros_like(q)
    n, keys, groups = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
    for b in range(len(q)):
        for h in range(q.shape[1]):
            for i in range(n):
                sums, means = {}, {}
                for inside in (True, False):
                    t = parallel.temperature if inside else 1.0
                    chosen = [
                        j for j in range(keys - n + i + 1) if (parallel.first <= j < parallel.end) is inside
                    ]  # fmt: skip
                    weights = [math.exp(float(q[b, h, i] @ k[b, h // groups, j]) * scale / t) for j in chosen]
                    sums[inside] = sum(weights)
                    means[inside] = sum(w * v[b, h // groups, j] for w, j in zip(weights, chosen, strict=True)) / sum(
                        weights
                    )
                a, other = sums[True] ** (parallel.scale * parallel.temperature), sums[False]
                out[b, h, i] = (a * means[True] + other * means[False]) / (a + other)
    return out


@pytest.mark.parametrize(("temperature", "scale"), [(0.9, 0.9), (0.4, 1.3), (1.0, 1.0)])
def test_the_attention_is_the_authors(temperature, scale):
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 3, 8).double(), torch.randn(2, 2, 12, 8).double(), torch.randn(2, 2, 12, 8).double()
    parallel = Parallel(2, 8, temperature, scale)
    assert_close(attend(q, k, v, parallel, 0.3), loops(q, k, v, parallel, 0.3), rtol=1e-11, atol=1e-12)


def side_by_side(model, tokenizer, new):
    """The likeliest next tokens of plain transformers under a 4-D mask, and shared positions: T = S = 1."""

    def ids(text):
        return tokenizer(text, add_special_tokens=False).input_ids

    start, contexts, asked = tokenizer("w1 w2").input_ids, [ids(c) for c in CONTEXTS], ids("w30 w9 w31")
    row, where, owner = list(start), list(range(len(start))), [-1] * len(start)
    for number, context in enumerate(contexts):
        row += context
        where += range(len(start), len(start) + len(context))
        owner += [number] * len(context)
    answer = []
    while len(answer) < new:
        tail = [*asked, *answer]
        after = len(start) + max(map(len, contexts))
        all_ids, positions = [*row, *tail], [*where, *range(after, after + len(tail))]
        whose = torch.tensor([*owner, *([-2] * len(tail))])
        n = len(all_ids)
        sees = (whose[None] == -1) | (whose[:, None] == whose[None]) | (whose[:, None] == -2)
        sees &= torch.arange(n)[:, None] >= torch.arange(n)
        mask = torch.zeros(n, n, dtype=torch.float64).masked_fill(~sees, -torch.inf)[None, None]
        logits = model(torch.tensor([all_ids]), attention_mask=mask, position_ids=torch.tensor([positions])).logits[
            0, -1
        ]
        answer.append(int(logits.argmax()))
    return tuple(answer)


@pytest.mark.usefixtures("no_gradients")
@pytest.mark.parametrize("batch_size", [None, 1, 3])
@pytest.mark.parametrize("kind", ["llama", "gpt_neox", "phi"])
def test_at_one_and_one_it_is_one_softmax_over_all_contexts(kind, batch_size, tokenizer):
    model = small_model(kind).double()
    options = {"template": TEMPLATE, "max_new_tokens": 5, "batch_size": batch_size}
    answer = ape_generate(model, tokenizer, CONTEXTS, "w9", temperature=1.0, scale=1.0, **options)
    wanted = side_by_side(model, tokenizer, 5)
    assert answer.tokens == wanted[: len(answer.tokens)]
    assert len(answer.tokens) == 5 or wanted[len(answer.tokens)] == 2
    assert (answer.context_tokens, answer.positions) == (19, 2 + 9 + 3 + len(answer.tokens) - (len(answer.tokens) == 5))


@pytest.mark.usefixtures("no_gradients")
def test_one_context_is_the_text_read_in_sequence_and_order_plays_no_part(tokenizer):
    model = small_model("llama").double()
    before = model.config._attn_implementation
    alone = ape_generate(
        model, tokenizer, CONTEXTS[:1], "w9", template=TEMPLATE, temperature=1, scale=1, max_new_tokens=6
    )
    text = tokenizer(TEMPLATE.format(context=CONTEXTS[0], question="w9"), return_tensors="pt").input_ids
    wanted = model.generate(text, max_new_tokens=6, do_sample=False)[0, text.shape[1] :].tolist()
    assert list(alone.tokens) == [token for token in wanted if token != 2]
    answers = [
        ape_generate(model, tokenizer, order, "w9", template=TEMPLATE, max_new_tokens=6).tokens
        for order in (CONTEXTS, CONTEXTS[::-1])
    ]
    assert answers[0] == answers[1]
    assert model.config._attn_implementation == before
    assert not any(hasattr(module, "_posenc_instead") for module in model.modules())


@pytest.mark.usefixtures("no_gradients")
def test_under_a_schedule_it_works_and_under_a_map_it_is_refused(tokenizer, llama):
    posenc.extend(llama, "yarn", factor=4)
    assert ape_generate(llama, tokenizer, CONTEXTS, "w9", template=TEMPLATE, max_new_tokens=2).tokens
    for method in ("rerope:window=16", "nope"):
        posenc.extend(llama, method)
        with pytest.raises(InputError, match="contexts in parallel need frequencies alone"):
            ape_generate(llama, tokenizer, CONTEXTS, "w9", template=TEMPLATE)
    posenc.restore(llama)
    for options, message in (
        ({"template": "{question} {context}"}, r"must have the field {context}, and {question} after it"),
        ({"template": "no fields"}, r"must have the field"),
        ({"temperature": 0.0}, r"temperature=0.0"),
        ({"scale": -1.0}, r"scale=-1.0"),
        ({"max_new_tokens": 0}, r"max_new_tokens=0"),
    ):
        with pytest.raises(InputError, match=message):
            ape_generate(llama, tokenizer, CONTEXTS, "w9", **{"template": TEMPLATE, **options})
    with pytest.raises(InputError, match="at least one text"):
        ape_generate(llama, tokenizer, [], "w9")
    with pytest.raises(InputError, match="each must have a token"):
        ape_generate(llama, tokenizer, ["w3", ""], "w9", template=TEMPLATE)
    for kind in ("gemma2", "gpt_oss"):
        with pytest.raises(InputError, match="nbce_generate takes any model"):
            ape_generate(small_model(kind), tokenizer, CONTEXTS, "w9", template=TEMPLATE)
