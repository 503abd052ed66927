"""A model's folder in which something is wrong: refused in words, without running, unpickling or reading elsewhere."""

import contextlib
import json
import pickle
import shutil

import pytest

import posenc
from posenc.errors import InputError
from references import gguf_files
from references.small_models import small_model


def changed(file, **entries):
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


class Bomb:
    """Touches a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt", "model.pth", "adapter_model.bin"])
def test_a_pickle_is_never_opened(model, name, tmp_path):
    bomb = pickle.dumps(Bomb(tmp_path / "pwned"))
    (model / name).write_bytes(bomb)
    posenc.load(model)  # beside weights that are safe
    (model / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"its weights are pickles"):
        posenc.load(model)
    with pytest.raises(InputError, match=r"is one file of a model"):
        posenc.load(model / name)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("text", ['{"peft_type": "LORA", "base_model_name_or_path": "../other"}', "[1]", "{"])
def test_an_adapter_is_refused_without_a_look_at_what_it_names(model, text):
    """transformers would load the model that it names, and other files."""
    (model / "adapter_config.json").write_text(text)
    with pytest.raises(InputError, match=r"is an adapter of PEFT: merge it"):
        posenc.load(model)


def test_code_beside_the_weights_is_not_run(model, tmp_path):
    (model / "own.py").write_text(f"open({str(tmp_path / 'pwned')!r}, 'w')")
    changed(model / "config.json", auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"})
    with pytest.warns(UserWarning, match=r"names code in the checkpoint"):
        posenc.load(model)
    changed(model / "config.json", model_type="own")
    with pytest.raises(InputError, match=r"code from the checkpoint"):
        posenc.load(model)
    assert not (tmp_path / "pwned").exists()


def test_code_beside_a_gguf_file_is_not_run_and_not_asked_for(tmp_path, monkeypatch):
    """transformers asks on a terminal unless it is told not to run it."""
    folder = tmp_path / "gguf"
    folder.mkdir()
    gguf_files.written(folder / "m.gguf", small_model("llama", vocab_size=512))
    for name in ("own.py", "tokenization_own.py"):
        (folder / name).write_text(f"open({str(tmp_path / 'pwned')!r}, 'w')\n")
    monkeypatch.setattr("builtins.input", lambda *asked: "y")
    for named in (["own.T", None], [None, "own.T"], "tokenization_own.T"):
        for more in ({}, {"tokenizer_class": "T"}):
            stated = {"auto_map": {"AutoTokenizer": named}} | more
            (folder / "tokenizer_config.json").write_text(json.dumps(stated))
            with contextlib.suppress(InputError):
                posenc.load(folder / "m.gguf")
            assert not (tmp_path / "pwned").exists()


def test_links_are_followed_in_the_cache_of_the_hub_alone(model, tmp_path):
    (model / "model.safetensors").rename(tmp_path / "blob")
    (model / "model.safetensors").symlink_to(tmp_path / "blob")
    with pytest.raises(InputError, match="is a link to a file outside of the folder: put the file itself there"):
        posenc.load(model)
    snapshot, blobs = tmp_path / "models--a--b/snapshots/0f", tmp_path / "models--a--b/blobs"
    blobs.mkdir(parents=True)
    (model / "model.safetensors").unlink()
    shutil.copytree(model, snapshot)
    (tmp_path / "blob").rename(blobs / "1c")
    (snapshot / "model.safetensors").symlink_to("../../blobs/1c")
    assert posenc.load(snapshot)[0].config.model_type == "llama"
    (blobs / "1c").rename(blobs.parent / "1c")
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to("../../1c")
    with pytest.raises(InputError, match="is a link to a file outside of the folder"):
        posenc.load(snapshot)
