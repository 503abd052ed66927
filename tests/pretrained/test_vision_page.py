"""The numbers of benchmarks/vision_libraries.md, measured again."""

import math
from pathlib import Path

import pytest
import torch
import transformers
from torch.testing import assert_close

import posenc
from posenc.pretrained.vision.tables import resample, resample_offsets, sinusoids
from references.small_vision import SIZE, images, of_transformers

PAGE = " ".join((Path(__file__).parents[2] / "benchmarks" / "vision_libraries.md").read_text(encoding="utf-8").split())


def stated(text: str) -> None:
    assert text in PAGE


def shares(old, new, *methods):
    """Spread of the difference between two tables made of one, in percent of the table's: random, smooth."""
    torch.manual_seed(0)
    tables = torch.randn(math.prod(old), 64), sinusoids(old, 64, x_first=True)
    made = [[resample(rows, old, new, method) for method in methods] for rows in tables]
    return [100 * float((a - b).std() / rows.std()) for (a, b), rows in zip(made, tables, strict=True)]


@pytest.mark.parametrize(
    ("old", "new", "methods", "text"),
    [
        (14, 24, ("bicubic", "bicubic_antialias"), "from 14 x 14 to 24 x 24 patches the tables differ by {:.0f} % of their spread (random; {:.1f} % smooth)"),
        (24, 14, ("bicubic", "bicubic_antialias"), "from 24 x 24 to 14 x 14 by {:.0f} % ({:.1f} %)"),
        (37, 16, ("bicubic", "bicubic_offset"), "the tables differ by {:.0f} % of their spread (random; {:.0f} % smooth)"),
    ],
)  # fmt: skip
def test_tables_of_one_checkpoint_differ(old, new, methods, text):
    stated(text.format(*shares((old, old), (new, new), *methods)))


def test_progressions_differ_from_stretched_offsets():
    torch.manual_seed(0)
    rows = torch.randn(169, 16)
    one, other = (resample_offsets(rows, (7, 7), (12, 12), method) for method in ("geometric", "bicubic"))
    share = 100 * float((one - other).std() / rows.std())
    assert share == pytest.approx(84, abs=0.5)
    stated("differ by 84 % of the spread of a random table")


def test_beit_reads_a_table_that_is_not_square_wrongly():
    (finding,) = (
        f for f in posenc.doctor(of_transformers("beit", image_size=[32, 48])).findings if f.severity == "wrong"
    )
    assert finding.measured == pytest.approx(2.6, abs=0.05)
    stated("For 4 x 6 patches biases of unit size are off by 2.6.")


def test_a_failed_image_leaves_swin_changed():
    model = of_transformers("swin")
    with pytest.raises(RuntimeError):
        model(images(8, 8))
    assert model.encoder.layers[1].blocks[0].window_size == 2
    with pytest.raises(RuntimeError), torch.no_grad():
        model(images(SIZE, SIZE))


def test_a_new_mae_has_empty_tables_and_its_decoder_reads_a_line():
    shape = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 224,
    }
    decoder = {"decoder_num_hidden_layers": 1, "decoder_intermediate_size": 32, "decoder_num_attention_heads": 2}
    model = transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**shape | decoder, decoder_hidden_size=768))
    table = model.decoder.decoder_pos_embed
    assert not table.any()
    assert not model.vit.embeddings.position_embeddings.any()
    table.data[0, 1:] = sinusoids((14, 14), 768, x_first=True)
    line = model.decoder.interpolate_pos_encoding(torch.zeros(1, 1 + 28 * 28, 768))[0, 1:]
    plane = resample(table[0, 1:].double(), (14, 14), (28, 28), "bicubic")
    assert float((line - plane).abs().max()) == pytest.approx(2.0, abs=0.05)
    stated("from 14 x 14 to 28 x 28, its values are off by 2.0")


def test_timms_swin_v2_stretches_its_offsets():
    stated(
        f"enters as {math.log2(1 + 8 / 3) / 3:.2f} in a window of 4 x 4 and as {math.log2(1 + 8 / 7) / 3:.2f} in one of 8 x 8"
    )


def test_the_square_trap():
    model = of_transformers("vit", image_size=[32, 48])
    with pytest.raises(RuntimeError), torch.no_grad():
        model(images(64, 96), interpolate_pos_encoding=True)
    silent = of_transformers("vit", image_size=[16, 64])
    with torch.no_grad():
        found = silent.embeddings.interpolate_pos_encoding(torch.zeros(1, 1 + 64, 32), 32, 128)[0, 1:]
    right = resample(silent.embeddings.position_embeddings[0, 1:], (2, 8), (4, 16), "bicubic")
    assert (found - right).abs().max() > 1
    as_square = resample(silent.embeddings.position_embeddings[0, 1:], (4, 4), (4, 16), "bicubic")
    assert_close(found, as_square)
