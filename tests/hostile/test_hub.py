"""A repository of the Hugging Face hub is read as a folder is: the index first, plain names, safetensors alone, no code."""

import json
import pickle
import shutil

import pytest
import torch

import posenc
from hostile.test_checkpoints import WORDS, edit
from hostile.test_files_models import Bomb
from posenc.errors import InputError
from posenc.pretrained import checked
from references.small_models import small_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(model, tmp_path, monkeypatch):
    """The files of owner/name on a hub, which downloads into a cache as huggingface_hub does, and the names it was asked for."""
    from huggingface_hub import constants
    from huggingface_hub.errors import EntryNotFoundError
    from transformers.utils import hub as theirs

    cache = tmp_path / "cache"
    repository = cache / "models--owner--name"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text(COMMIT)
    asked = []

    def download(repo, filename, *, subfolder=None, **_):
        assert repo == "owner/name"
        asked.append(filename)
        blob, file = repository / "blobs" / str(len(asked)), repository / "snapshots" / COMMIT / str(filename)
        if not (model / filename).is_file():
            file.unlink(missing_ok=True)
            raise EntryNotFoundError(f"404: {filename}")
        for each in (blob, file):
            each.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(model / filename, blob)
        file.unlink(missing_ok=True)
        file.symlink_to(blob)
        return str(file)

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(theirs, "hf_hub_download", download)
    monkeypatch.chdir(tmp_path)
    return model, asked


def refused(folder, match):
    with pytest.raises(InputError, match=match) as error:
        posenc.load("owner/name")
    assert "\n" not in str(error.value)
    assert not list(folder.parent.glob("RAN*"))


def shards(folder, name):
    """The weights as an index states them, and pickles beside it."""
    weights = checked.shapes_in([folder / "model.safetensors"])
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    (folder / "weights.bin").write_bytes(pickle.dumps(Bomb(folder.parent / "RAN")))
    (folder / checked.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(weights, name)}))


def test_a_repository_is_loaded_from_one_file_and_from_shards(hub):
    folder, asked = hub
    wanted = posenc.load(folder)[0].state_dict()
    for name in ("model.safetensors", "one.safetensors"):
        if name != "model.safetensors":
            shards(folder, name)
        model, tokenizer = posenc.load("owner/name")
        assert tokenizer is not None
        assert all(torch.equal(wanted[key], value) for key, value in model.state_dict().items())
        assert name in asked


@pytest.mark.parametrize(
    "name", ["weights.bin", "../one.safetensors", "/one.safetensors", "a/one.safetensors", 3, None]
)
def test_an_index_on_the_hub_names_plain_files(hub, name):
    folder, asked = hub
    shards(folder, name)
    refused(folder, r"must be a plain name in the folder that ends in \.safetensors")
    assert not {name, "weights.bin", "pytorch_model.bin"} & {*asked}


@pytest.mark.parametrize("name", ["weights.bin", "../x.safetensors", "/x.safetensors", 3, "x.py", "../x.index.json"])
def test_a_configuration_on_the_hub_names_a_plain_file(hub, name):
    folder, asked = hub
    edit(folder, transformers_weights=name)
    refused(folder, r"must be a plain name in the folder|names a pickle")
    assert name not in asked


def test_code_on_the_hub_is_not_run(hub):
    folder, asked = hub
    own(folder)
    with pytest.warns(UserWarning, match="auto_map"):
        assert posenc.load("owner/name")[0].config._attn_implementation == "sdpa"
    assert "own.py" not in asked


def own(folder, **entries):
    """A model that names code of its own."""
    (folder / "own.py").write_text(f"open({str(folder.parent / 'RAN')!r}, 'w')")
    auto = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    edit(folder, auto_map=auto, attn_implementation="owner/kernel", **entries)


def adapter(folder):
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/other", "peft_type": "LORA"}')


def unsafe(folder):
    """Weights that are a pickle."""
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(folder.parent / "RAN")))


@pytest.mark.parametrize(("damage", "match"), [
    (lambda folder: own(folder, model_type="own"), "needs code from the checkpoint"),
    (adapter, r"is an adapter of PEFT: merge it"),
    (unsafe, r"contains no weights in safetensors \(model.safetensors or model.safetensors.index.json\)"),
], ids=["code", "adapter", "pickle"])  # fmt: skip
def test_what_a_folder_is_refused_for_a_repository_is(hub, damage, match):
    folder, asked = hub
    damage(folder)
    refused(folder, match)
    assert not {"own.py", "pytorch_model.bin"} & {*asked}


# ------------------------------------------------------------------------------------------ weights that nothing reads


def rewritten(folder, add, remove=()):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    save_file(
        {k: v for k, v in weights.items() if k not in remove} | add, folder / "model.safetensors", {"format": "pt"}
    )


LAYER = "model.layers.0."
HARMFUL = [
    f"{LAYER}self_attn.q_proj.weight_scale_inv", f"{LAYER}self_attn.q_proj.weight_scale", f"{LAYER}mlp.up_proj.input_scale",
    f"{LAYER}self_attn.q_proj.bias", f"{LAYER}self_attn.q_norm.weight", f"{LAYER}post_feedforward_layernorm.weight",
    f"{LAYER}self_attn.sinks", "model.layers.9.mlp.up_proj.weight", "model.norm.bias", "lm_head.bias", "model.embed_positions.weight",
    "model.final_norm.weight", "layers.0.self_attn.k_proj.bias", "norm.bias", "extra_norm.weight", f"{LAYER}self_attn.attn.bias",
    f"{LAYER}self_attn.k_proj.qweight", f"{LAYER}mlp.experts.0.up_proj.weight",
]  # fmt: skip
HARMLESS = [
    f"{LAYER}self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq", "model.rotary_emb.original_inv_freq",
    f"{LAYER}self_attn.masked_bias", "model.position_ids", "model.embeddings.position_ids", "score.weight", "classifier.bias",
    "v_head.summary.weight", "cls.predictions.bias", "pooler.dense.weight", "qa_outputs.weight", "mtp.layers.0.norm.weight",
]  # fmt: skip


@pytest.mark.parametrize("name", HARMFUL)
def test_weights_that_would_change_the_output_are_refused(model, name):
    rewritten(model, {name: torch.ones(3)})
    scale = ", which|scales quantised weights" if "scale" in name or "qweight" in name else "would change the output"
    with pytest.raises(InputError, match=rf"1 of the weights in its files are not used .* {name} ({scale})"):
        posenc.load(model)


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.int32, torch.bool], ids=str
)
def test_quantised_weights_without_their_scales_are_refused(model, dtype):
    """The file says nothing of a quantisation, and transformers takes the numbers for weights."""
    rewritten(model, {f"{LAYER}self_attn.q_proj.weight": torch.ones(64, 64).to(dtype)})
    with pytest.raises(InputError, match=rf"{LAYER}self_attn.q_proj.weight is in \w+, quantised"):
        posenc.load(model)
    assert posenc.pretrained.checked.QUANTISED.match("F8_E4M3")
    assert not any(posenc.pretrained.checked.QUANTISED.match(kind) for kind in ("F32", "F16", "BF16", "F64"))


@pytest.mark.parametrize("name", HARMLESS)
def test_weights_that_change_nothing_are_left_out(model, name):
    rewritten(model, {name: torch.ones(3)})
    posenc.load(model)


def test_a_causal_mask_is_told_from_a_bias_by_its_shape(model):
    for shape, passes in (((1, 1, 8, 8), True), ((64,), False)):
        rewritten(model, {f"{LAYER}self_attn.attn.bias": torch.ones(shape)})
        if passes:
            posenc.load(model)
        else:
            with pytest.raises(InputError, match="would change the output"):
                posenc.load(model)


@pytest.mark.parametrize(
    "name", ["blk.0.attn_q.bias", "blk.0.attn_q_norm.weight", "output.bias", "blk.0.attn_sinks.weight"]
)
def test_tensors_of_a_gguf_file_that_nothing_reads_are_refused(tmp_path, name, monkeypatch):
    import gguf

    from references import gguf_files

    write = gguf.GGUFWriter.write_header_to_file

    def more(writer):
        writer.add_tensor(name, torch.ones(64).numpy())
        write(writer)

    monkeypatch.setattr(gguf.GGUFWriter, "write_header_to_file", more)
    gguf_files.write(tmp_path / "m.gguf", small_model("llama"), WORDS)
    with pytest.raises(
        InputError, match=rf"1 of the weights in its files are not used .* {name} would change the output"
    ):
        posenc.load(tmp_path / "m.gguf")
