"""posenc doctor and posenc extend --image-size on folders with tiny vision models."""

import json

import pytest
import torch
import transformers

import posenc
from references.commands import run
from references.small_vision import images, of_transformers


@pytest.fixture
def folder(tmp_path, capsys):
    of_transformers("vit").save_pretrained(tmp_path / "model")
    capsys.readouterr()
    return tmp_path / "model"


def test_a_vision_model_is_resized_and_saved(folder, capsys, tmp_path):
    arguments = ["extend", folder, "--image-size", "48x64", "--out", tmp_path / "larger", "--json"]
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    report = json.loads(out)
    assert report["resizing"]["new"] == [48, 64]
    assert report["resizing"]["difference"] <= 2e-6
    assert report == json.loads((tmp_path / "larger" / "extend.json").read_text())
    plain = transformers.ViTModel.from_pretrained(tmp_path / "larger").eval()
    with torch.no_grad():
        want = of_transformers("vit")(images(48, 64), interpolate_pos_encoding=True).last_hidden_state
        assert torch.allclose(plain(images(48, 64)).last_hidden_state, want, atol=2e-6)


def test_the_report_is_shown(folder, capsys):
    code, out, _ = run(capsys, "extend", folder, "--image-size", 48, "--method", "bicubic_antialias", "--no-verify")
    assert code == 0
    assert "4 x 4 -> 6 x 6 (bicubic_antialias)" in out
    assert "verified" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--image-size", "large"], "--image-size large: write pixels, as 384 or 384x512"),
        (["--image-size", "3x3x3"], "--image-size 3x3x3: write pixels"),
        (["--image-size", "9" * 5000], "write pixels"),
        (["--image-size", "48", "--steps", "5"], "--steps: is for fine-tuning"),
        (["--image-size", "33"], "--image-size (33, 33): must be a multiple of the patches"),
        (["--image-size", "48", "--factor", "2"], "is for language models, leave it out beside --image-size"),
        (["--image-size", "48", "--finetune", "a.txt"], "--finetune: is for language models"),
        (["--image-size", "48", "--option", "a=1"], "--option: is for language models"),
        (["--image-size", "48", "--window-size", "6"], "--window-size 6: vit has no windows"),
        (
            ["--window-size", "6", "--method", "yarn"],
            "--window-size 6: is for vision models, give --image-size with it",
        ),
        (["--factor", "2"], "--method: is required"),
    ],
)
def test_mistakes_are_named(folder, capsys, arguments, message):
    code, _, err = run(capsys, "extend", folder, *arguments)
    assert code == 2
    assert message in err


def test_nothing_is_written_over(folder, capsys):
    code, _, err = run(capsys, "extend", folder, "--image-size", 48, "--out", folder)
    assert code == 2
    assert "is not empty" in err


def test_doctor_says_what_a_vision_model_is(folder, capsys, tmp_path):
    code, out, _ = run(capsys, "doctor", folder)
    assert code == 0
    assert "vit of transformers: float32, images of 32 x 32, 4 x 4 patches of 8 x 8" in out
    assert "note: one_size" in out
    of_transformers("beit", image_size=[32, 48]).save_pretrained(tmp_path / "beit")
    code, out, _ = run(capsys, "doctor", tmp_path / "beit")
    assert code == 1
    assert "wrong: rows_for_columns" in out


def test_load_takes_the_class_that_was_saved(tmp_path):
    model = transformers.ViTForImageClassification(of_transformers("vit").config)
    model.save_pretrained(tmp_path / "vit")
    found, tokenizer = posenc.load(tmp_path / "vit")
    assert type(found) is transformers.ViTForImageClassification
    assert tokenizer is None
    assert not found.training
    config = json.loads((tmp_path / "vit" / "config.json").read_text())
    for name in ("LlamaForCausalLM", "pipeline", "nothing"):  # what is none for the configuration is not called
        (tmp_path / "vit" / "config.json").write_text(json.dumps(config | {"architectures": [name]}))
        with pytest.raises(posenc.InputError, match=r"of the weights of ViTModel are not in its files"):
            posenc.load(tmp_path / "vit")
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.CLIPConfig(
        vision_config=shape | {"image_size": 32, "patch_size": 8}, text_config=shape | {"max_position_embeddings": 9}
    )
    transformers.CLIPModel(config).save_pretrained(tmp_path / "clip")
    found, _ = posenc.load(tmp_path / "clip")
    assert posenc.resize(found, 48).new == (48, 48)
