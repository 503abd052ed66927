"""Patterns of layers: the text each stands for, models of transformers that have them, caches, what is skipped, and where a
text may name one."""

import json

import pytest
import torch
import transformers

import posenc
from posenc import InputError, Positions, create
from posenc.encodings.catalogue import entries, pattern_rows
from posenc.encodings.patterns import PATTERNS, read
from posenc.lab.compare import Comparison, names
from posenc.lab.transformer import Transformer, TransformerConfig
from references.calls import visited
from references.commands import run

CHUNKED, STEPS = "rope:rope_theta=500000.0+chunks:size=4", "step_temperature:train_length=4"
ROPE, LOCAL, WIDE = "rope:rope_theta=10000.0", "rope:rope_theta=10000.0+window:before=3", "rope:rope_theta=1000000.0"
WRITTEN = {
    "rope_nope": f"{ROPE}/{ROPE}/{ROPE}/none",
    "rope_nope:every=2:rope_theta=500": "rope:rope_theta=500/none",
    "local_nope:window=4": f"{LOCAL}/{LOCAL}/{LOCAL}/none",
    "local_rope:window=4:every=3": f"{LOCAL}/{LOCAL}/{WIDE}",
    "local_rope:window=4": "/".join([LOCAL] * 5 + [WIDE]),
    "local_p_rope:window=4:every=2": f"{LOCAL}/p_rope:rope_theta=1000000.0:fraction=0.25",
    "partial_rope": "rope:rotary_dim=2",
    "irope:chunk=4": f"{CHUNKED}/{CHUNKED}/{CHUNKED}/{STEPS}",
    "irope:chunk=4:every=2+sink": f"{CHUNKED}+sink/{STEPS}+sink",
    "local_nope:window=4:every=2+sink": f"{LOCAL}+sink/none+sink",
    "sink+local_nope:window=4:every=2/alibi": f"sink+{LOCAL}/sink+none/alibi",
}
CONFIG = TransformerConfig(17, dim=32, num_layers=6, num_heads=4, num_kv_heads=2)


def host(text):
    torch.manual_seed(0)
    return Transformer(CONFIG, text).double().eval()


@pytest.mark.parametrize("text", WRITTEN)
def test_a_pattern_is_the_layers_that_it_stands_for(text):
    ours, spelled = host(text), host(WRITTEN[text])
    assert ours.encoding.spec() == spelled.encoding.spec()
    tokens = torch.randint(17, (2, 9))
    assert torch.equal(ours(tokens), spelled(tokens))


SMALL = {
    "vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "attn_implementation": "eager",
}  # fmt: skip
MODELS = {
    "SmolLM3": ("SmolLM3Config", "SmolLM3Model", "rope_nope:rope_theta=2e6", 4, {}),
    "Cohere2": ("Cohere2Config", "Cohere2Model", "local_nope:window=4", 4, {"sliding_window": 4}),
    "EXAONE 4": ("Exaone4Config", "Exaone4Model", "local_nope:window=4", 4, {"sliding_window": 4, "sliding_window_pattern": 4}),
    "Gemma 2": ("Gemma2Config", "Gemma2Model", "local_rope:window=4:every=2:rope_theta=10000", 2,
                {"sliding_window": 4, "query_pre_attn_scalar": 8, "attn_logit_softcapping": None}),
    "Gemma 3": ("Gemma3TextConfig", "Gemma3TextModel", "local_rope:window=4", 6, {"sliding_window": 4}),
    "Gemma 4": ("Gemma4TextConfig", "Gemma4TextModel", "local_p_rope:window=4", 6,
                {"sliding_window": 4, "global_head_dim": 8, "hidden_size_per_layer_input": 0}),
    "Llama 4": ("Llama4TextConfig", "Llama4TextModel", "irope:chunk=4", 4,
                {"attention_chunk_size": 4, "floor_scale": 4, "use_qk_norm": False, "num_local_experts": 2, "intermediate_size_mlp": 32}),
    "StableLM": ("StableLmConfig", "StableLmModel", "partial_rope", 2, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_the_layers_of_models_attend_so(name):
    config, made, text, layers, more = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, config)(**SMALL, num_hidden_layers=layers, **more)
    model, tokens = getattr(transformers, made)(config).double().eval(), torch.randint(32, (1, 11))
    written = read(text)
    if name in ("Cohere2", "Llama 4"):  # their weights have interleaved pairs
        written = read(str(written).replace("rope:", "rope:layout=interleaved:"))
    encoding, positions, given = create(written, head_dim=8, num_heads=4), Positions.arange(11, causal=True), {}
    for layer, block in enumerate(model.layers):

        def before(_, args, named, at=layer):
            given[at] = [args[0] if args else named["hidden_states"]]

        def after(_, args, at=layer):
            given[at].append(args[0])

        block.self_attn.register_forward_pre_hook(before, with_kwargs=True)
        block.self_attn.o_proj.register_forward_pre_hook(after)
    with torch.no_grad():
        model(tokens)
        for layer, block in enumerate(model.layers):
            x, theirs = given[layer]
            module = block.self_attn
            q, k, v = (
                p(x).unflatten(-1, (-1, 8)).transpose(1, 2) for p in (module.q_proj, module.k_proj, module.v_proj)
            )
            for norm in ("q_norm", "k_norm", "v_norm"):
                normed = getattr(module, norm, None)
                if normed is not None:
                    q, k, v = (
                        normed(each) if norm[0] == of else each for of, each in zip("qkv", (q, k, v), strict=True)
                    )
            ours = posenc.attention(q, k, v, encoding, positions, layer=layer, scale=module.scaling)
            torch.testing.assert_close(ours.transpose(1, 2).flatten(2), theirs.flatten(2), rtol=0, atol=1e-6)


# ---------------------------------------------------------------- what is skipped


def test_layers_with_a_window_visit_its_keys_alone():
    encoding = create("local_nope:window=8:every=3", head_dim=8, num_heads=2, num_layers=3)
    local, also_local, everything = (visited(encoding, 2, 8, 64, layer)[0] for layer in range(3))
    assert local == also_local
    assert everything == visited(posenc.NoPE(), 2, 8)[0]
    in_window = sum(min(i + 1, 8) for i in range(64))
    assert in_window <= local < 2 * in_window + 8 * 64 < everything, "the window's keys, in tiles of 8 by 8"
    longer = visited(encoding, 2, 8, 128)[0]
    assert longer < 2.2 * local, "a window costs as much for each query, however long the text is"


def test_explain_names_each_layer():
    encoding = create("local_nope:window=64:every=2", head_dim=16, num_heads=2)
    q = torch.randn(1, 2, 512, 16)
    local, everything = (posenc.explain(q, q, q, encoding, Positions.arange(512, causal=True), layer=n) for n in (0, 1))
    assert (local.backend, everything.backend) == ("sdpa", "sdpa")
    assert "only what is visible is visited" in local.reason
    assert "only the future is hidden" in everything.reason


# ---------------------------------------------------------------- where a text may name one


def test_the_list_and_the_papers_have_every_pattern(capsys):
    code, out, _ = run(capsys, "list", "--json")
    assert code == 0
    rows = json.loads(out)["patterns"]
    assert rows == pattern_rows()
    assert {row["name"]: row["text"] for row in rows} == {name: str(read(name)) for name in PATTERNS}
    assert all(row["models"] and row["summary"] and row["papers"] for row in rows)
    code, out, _ = run(capsys, "list")
    assert all(any(line.split()[:1] == [name] for line in out.splitlines()) for name in PATTERNS)
    papers = posenc.cite("local_nope:window=4+alibi")
    for pattern in PATTERNS.values():
        assert set(pattern.papers) <= set(entries())
    for paper in ("yang2025rope", "puvvada2025swan", "su2021roformer", "beltagy2020longformer", "press2022train"):
        assert paper in papers


def test_a_comparison_takes_them():
    from lab.conftest import TEXT, TINY
    from posenc.lab import data

    texts = names(["local_rope:window=8:every=2,local_nope:window=4:every=2", "partial_rope"])
    assert len(texts) == 3
    corpus, settings = data.corpus(TEXT, "numbered lines"), TINY.changed(num_layers=2, head_dim=8)
    comparison = Comparison(texts, 1, settings)
    comparison.check(corpus)
    with pytest.raises(InputError, match=r"names 4 layers, the model has 2; pass num_layers=4"):
        Comparison(("local_nope:window=4",), 1, settings).check(corpus)


def test_names_of_the_caller_come_first():
    class Mine(posenc.NoPE):
        pass

    assert type(create("rope_nope", classes={"rope_nope": Mine})) is Mine


REFUSED = {
    "every": ("rope_nope:every=1", "every=1"),
    "window": ("local_nope:window=0", "window=0"),
    "chunk": ("irope:chunk=0", "chunk=0"),
    "fraction": ("partial_rope:fraction=16", "fraction=16"),
    "theta": ("local_rope:local_theta=0", "rope_theta=0"),
    "option": ("local_nope:widnow=4", "unknown option of local_nope 'widnow=4': did you mean 'window'"),
    "type": ("local_nope:window=wide", "option window='wide' of local_nope"),
    "map": ("rope_nope@rerope:window=4", "a position map is for one encoding"),
    "two": ("rope_nope+local_nope", "adds patterns of layers"),
    "name": ("local_nop", "did you mean 'local_nope'"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_refusals(text, message):
    with pytest.raises(InputError, match=message):
        create(text, head_dim=8, num_heads=2)
    with pytest.raises(InputError, match="is a pattern of layers"):
        posenc.from_spec({"name": "local_nope"})
