"""GGUF files: llama.cpp computes what the model does, for every architecture, schedule and tokenizer; and refusals."""

import shlex

import numpy
import pytest
import tokenizers
import torch
import transformers
from gguf import GGUFReader

import posenc
from posenc import InputError, to_gguf
from posenc.pretrained.gguf_architectures import ARCHITECTURES
from posenc.pretrained.gguf_reader import MORE
from posenc.pretrained.readers import compare, read_config
from references import llama_cpp, stories15m
from references.commands import run
from references.small_models import small_model, tokens

SETTINGS = {
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3_text": {"query_pre_attn_scalar": 16},
    "qwen2": {"use_sliding_window": False, "layer_types": ["full_attention"] * 2},
    "smollm3": {"no_rope_layer_interval": 4},
}
SCHEDULES = (
    "linear",
    "ntk",
    "abf:new_base=50000",
    "yarn",
    "yarn_paper",
    "llama3",
    "ntk_mixed",
    "dynamic",
    "yarn:original_max_positions=32",
)
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "attention_factor": 1.3,
}
GELU = 3e-3
"""Of Gemma: llama.cpp reads GELU from a table of float16."""


def model_of(name):
    return small_model(name, **SETTINGS.get(name, {}))


@torch.no_grad()
def differs(model, ids, found):
    """The largest difference of log-probabilities after each row of ids."""
    wanted = model(ids).logits[:, -1].float().log_softmax(-1)
    return max(
        abs(value - float(row[token])) for row, one in zip(wanted, found, strict=True) for token, value in one.items()
    )


def test_llama_cpp_computes_every_architecture_and_schedule(tmp_path):
    models, ids = {}, {"all": tokens(2, 50), "long": tokens(2, 200)}
    for name in ARCHITECTURES:
        models[tmp_path / f"{name}.gguf"] = (model_of(name), "all", GELU if "gemma" in name else 1e-3)
    for method in SCHEDULES:
        for name in ("llama", "phi3", "qwen2"):
            model = model_of(name)
            posenc.extend(model, method, factor=4)
            if name == "qwen2" and method in ("yarn_paper", "llama3", "ntk_mixed"):
                with pytest.raises(InputError, match=r"llama.cpp's qwen2 has no key for these frequencies"):
                    to_gguf(model, tmp_path / "refused.gguf")
                continue
            models[tmp_path / f"{name}-{method.replace(':', '-')}.gguf"] = (model, "long", 1e-3)
    for path, (model, _, _) in models.items():
        assert str(to_gguf(model, path, dtype="float32"))
    found = llama_cpp.log_probabilities({path: ids[which].tolist() for path, (_, which, _) in models.items()}, 256)
    off = {path.stem: differs(model, ids[which], found[path]) for path, (model, which, _) in models.items()}
    assert {
        name: error for (name, error), (_, _, most) in zip(off.items(), models.values(), strict=True) if error > most
    } == {}
    plain = llama_cpp.log_probabilities({tmp_path / "llama.gguf": tokens(2, 60).tolist()}, 256)[tmp_path / "llama.gguf"]
    assert differs(models[tmp_path / "llama-linear.gguf"][0], tokens(2, 60), plain) > 0.1, "the schedule matters"


def test_llama_cpp_computes_an_attention_factor_and_other_betas(tmp_path):
    """A factor is a key, which multiplies yarn's own; betas are read of no file of these types: divisors, or a refusal."""
    models, ids = {}, tokens(2, 200)
    for name in ("llama", "qwen2", "olmo2", "gemma3_text", "gemma2"):
        if name != "gemma3_text":
            settings = {"rope_parameters": YARN, "max_position_embeddings": 256} | SETTINGS.get(name, {})
            models[tmp_path / f"{name}-loaded.gguf"] = small_model(name, **settings)
        for method in ("yarn:attention_factor=1.0", "yarn:beta_fast=8:beta_slow=2", "yarn", "linear", "ntk"):
            model = model_of(name)
            posenc.extend(model, method, factor=4)
            path = tmp_path / f"{name}-{method.replace(':', '-')}.gguf"
            if name != "llama" and "beta" in method:
                with pytest.raises(
                    InputError, match=r"beta_fast=8 and beta_slow=2 of yarn: llama.cpp's \w+ reads none of it"
                ):
                    to_gguf(model, path)
            elif name == "gemma3_text" and "attention" in method:
                with pytest.raises(InputError, match="its attention factor is of full_attention"):
                    to_gguf(model, path)
            else:
                models[path] = model
    for path, model in models.items():
        to_gguf(model, path, dtype="float32")
    found = llama_cpp.log_probabilities(dict.fromkeys(models, ids.tolist()), 256)
    off = {path.stem: differs(model, ids, found[path]) for path, model in models.items()}
    assert {name: each for name, each in off.items() if each > (GELU if "gemma" in name else 1e-3)} == {}


def test_longrope_has_a_list_for_short_texts_and_one_for_long_ones(tmp_path):
    """llama.cpp chooses by its context; architectures with one list are refused."""
    lists = {"short_factor": [1.0, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6], "long_factor": [1.0, 1.5, 2, 3, 4, 5, 6, 7.0]}
    table = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 300, **lists}
    sizes = {"original_max_position_embeddings": 300, "max_position_embeddings": 1024}
    model = small_model("phi3", rope_parameters=table, **sizes)
    report = to_gguf(model, tmp_path / "m.gguf", dtype="float32")
    assert "for inputs of at most 300 tokens -c 300" in report.command
    for length, context in ((200, 256), (400, 512)):
        ids = tokens(2, length)
        found = llama_cpp.log_probabilities({tmp_path / "m.gguf": ids.tolist()}, context)[tmp_path / "m.gguf"]
        assert differs(model, ids, found) < 1e-3
    tensors = {each.name: each.data.tolist() for each in GGUFReader(tmp_path / "m.gguf").tensors if "rope" in each.name}
    for kind in ("short", "long"):
        assert tensors[f"rope_factors_{kind}.weight"] == pytest.approx(lists[f"{kind}_factor"])
    (reading,) = (r for r in compare(read_config(tmp_path / "m.gguf")).readings if r.program == "llama.cpp")
    assert reading.attention_factor == pytest.approx(model.model.rotary_emb.attention_scaling)
    with pytest.raises(
        InputError, match=r"inputs beyond 300 tokens rotate by other frequencies, and llama.cpp's llama has"
    ):
        to_gguf(small_model("llama", rope_parameters=table, **sizes), tmp_path / "refused.gguf")


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_what_is_written_without_a_tokenizer_is_read(name, tmp_path):
    """By posenc.load, extended or not, of every architecture that is written."""
    for method in (None, "linear", "yarn"):
        model = model_of(name)
        if method:
            posenc.extend(model, method, factor=4)
        to_gguf(model, tmp_path / f"{method}.gguf", dtype="float32")
        again, tokenizer = posenc.load(tmp_path / f"{method}.gguf", dtype="float32")
        assert tokenizer is None
        ids = tokens(1, 60)
        torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", sorted(MORE))
def test_what_transformers_does_not_read_is_read_with_its_tokenizer(name, tmp_path):
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=["<s>", "</s>"])
    bpe.train_from_iterator(["the cat sat on the mat, and the dog sat on the cat"], trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", eos_token="</s>")
    model = small_model(name, **SETTINGS.get(name, {}), vocab_size=len(tokenizer))
    to_gguf(model, tmp_path / "m.gguf", tokenizer, dtype="float32")
    again, read = posenc.load(tmp_path / "m.gguf", dtype="float32")
    ids = torch.tensor([tokenizer("the dog and the cat")["input_ids"]])
    assert read("the dog and the cat")["input_ids"] == ids[0].tolist()
    torch.testing.assert_close(again(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "method", ["linear", "ntk", "yarn", "yarn:beta_fast=4:beta_slow=0.1", "yarn:original_max_positions=32"]
)
def test_the_flags_that_to_hf_prints(method, tmp_path):
    """On the file of the model before; within its length, since xllamacpp cannot override the context."""
    model, ids = model_of("llama"), tokens(1, 60)
    to_gguf(model, tmp_path / "m.gguf", dtype="float32")
    posenc.extend(model, method, factor=4)
    flags = posenc.to_hf(model, tmp_path / "longer").llama_cpp.partition(" (on a GGUF file")[0]
    assert "--rope" in flags
    found = llama_cpp.log_probabilities({tmp_path / "m.gguf": ids.tolist()}, 64, flags)[tmp_path / "m.gguf"]
    assert differs(model, ids, found) < 1e-3


@pytest.mark.parametrize("method", ["linear", "ntk", "yarn", "llama3", "ntk_mixed"])
@pytest.mark.slow
def test_stories15m_past_its_length(method, tmp_path):
    stories15m.require()
    model, texts = stories15m.load(), stories15m.texts()[:2, :1000]
    posenc.extend(model, method, factor=4)
    to_gguf(model, tmp_path / "s.gguf", dtype="float32")
    found = llama_cpp.log_probabilities({tmp_path / "s.gguf": texts.tolist()}, 1024)[tmp_path / "s.gguf"]
    assert differs(model, texts, found) < 1e-3


@pytest.mark.slow
def test_smollm2_with_its_tokenizer(demo, tmp_path):
    model, tokenizer = demo
    texts = ["The capital of France is", "Once upon a time, in 1999,\n\n  there was", "def f(x):\n    return"]
    to_gguf(model, tmp_path / "d.gguf", tokenizer, dtype="float32")
    prompts = [tokenizer(text)["input_ids"] for text in texts]
    found = llama_cpp.log_probabilities({tmp_path / "d.gguf": [*prompts, *texts]})[tmp_path / "d.gguf"]
    for ids, of_ids, of_text in zip(prompts, found[:3], found[3:], strict=True):
        assert differs(model, torch.tensor([ids]), [of_ids]) < 1e-3
        assert of_ids == pytest.approx(of_text, abs=1e-3)


def test_the_file_says_what_the_model_is(tmp_path, tokenizer):
    model = model_of("llama")
    posenc.extend(model, "yarn", factor=4)
    report = to_gguf(model, tmp_path / "m.gguf")
    assert (report.method, report.length, report.dtype) == ("yarn", 256, "float16")
    fields = {key: value.contents() for key, value in GGUFReader(tmp_path / "m.gguf").fields.items()}
    assert fields["llama.context_length"] == 256
    assert (fields["llama.rope.scaling.type"], fields["llama.rope.scaling.original_context_length"]) == ("yarn", 64)
    kinds = {tensor.name: tensor.data.dtype for tensor in GGUFReader(tmp_path / "m.gguf").tensors}
    assert kinds["blk.0.attn_q.weight"] == numpy.float16
    assert kinds["blk.0.attn_norm.weight"] == numpy.float32
    assert not any("posenc" in each.name for each in tmp_path.iterdir())
    (reading,) = [each for each in compare(read_config(tmp_path / "m.gguf")).readings if each.program == "llama.cpp"]
    assert (reading.schedule, reading.attention_factor) == ("yarn", pytest.approx(report.rope and 1.138629436))


def test_the_printed_command_quotes_its_path(tmp_path):
    (tmp_path / "two words").mkdir()
    report = to_gguf(small_model("llama"), tmp_path / "two words" / "m.gguf")
    assert shlex.split(report.command)[:3] == ["llama-server", "-m", str(tmp_path / "two words" / "m.gguf")]


def test_the_command_writes_one(tmp_path, capsys, llama, tokenizer):
    llama.save_pretrained(tmp_path / "model")
    file = tmp_path / "longer.gguf"
    command = ("extend", str(tmp_path / "model"), "--method", "linear", "--factor", "4", "--no-verify")
    code, out, _ = run(capsys, *command, "--gguf", str(file))
    assert code == 0
    assert f"{file}: llama, float16, linear, 256 tokens" in out
    code, _, err = run(capsys, *command, "--gguf", str(file))
    assert code == 2
    assert "name a new file that ends in .gguf" in err


def test_refusals(tmp_path, llama, tokenizer):
    file = tmp_path / "m.gguf"
    with pytest.raises(InputError, match="glm"):
        to_gguf(small_model("glm4"), file)
    with pytest.raises(InputError, match="dtype 'int4'"):
        to_gguf(llama, file, dtype="int4")
    with pytest.raises(InputError, match="folder does not exist"):
        to_gguf(llama, tmp_path / "none" / "m.gguf")
    with pytest.raises(InputError, match="layer 0 sees 24 keys"):
        to_gguf(small_model("qwen2"), file)
    with pytest.raises(InputError, match="query_pre_attn_scalar=256"):
        to_gguf(small_model("gemma2"), file)
    with pytest.raises(InputError, match="layer 1 has no positions"):
        to_gguf(small_model("smollm3"), file)
    with pytest.raises(InputError, match="its model is WordLevel"):
        to_gguf(llama, file, tokenizer)
    letters = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, []))
    with pytest.raises(InputError, match=r"it has no merges.*leave it out"):
        to_gguf(llama, file, transformers.PreTrainedTokenizerFast(tokenizer_object=letters))
    posenc.extend(llama, "rerope", factor=4, window=16)
    with pytest.raises(InputError, match="cannot express the position map rerope"):
        to_gguf(llama, file)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_a_dynamic_model_says_where_it_ends(tmp_path):
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    model = small_model("llama", rope_parameters=dynamic)
    said = "beyond 64 tokens dynamic turns pairs more slowly"
    assert said in str(posenc.to_gguf(model, tmp_path / "loaded.gguf"))
    posenc.extend(model, "yarn", factor=2)
    assert said not in str(posenc.to_gguf(model, tmp_path / "extended.gguf"))
