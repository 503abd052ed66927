"""Images from scikit-learn, folders, rows and datasets: pixels, classes, the split, and what is refused."""

import io
import struct
import zlib
from dataclasses import replace

import pytest
import torch

from hostile.test_checkpoints import little_memory
from lab.vision.conftest import TINY
from posenc import InputError
from posenc.lab.vision.images import HELD_OUT, ImageCorpus, Pixels, load, png

Image = pytest.importorskip("PIL.Image")
COLOURS = {"cat": (200, 40, 10), "dog": (10, 90, 220), "10": (0, 0, 0), "9": (255, 255, 255)}


def picture(name, number, size=(13, 9)):
    """An image whose middle is of the class's colour, and whose number can be read off it."""
    image = Image.new("RGB", size, COLOURS[name])
    image.putpixel((size[0] // 2, size[1] // 2), (number, number, number))
    return image


def encoded(image, form="PNG"):
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


@pytest.fixture
def folder(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "images" / name / "deeper").mkdir(parents=True)
        for n in range(10):
            where = tmp_path / "images" / name / ("deeper" if n % 2 else "") / f"{n}.{'png' if n else 'bmp'}"
            picture(name, n).save(where)
        (tmp_path / "images" / name / "notes.txt").write_text("no image")
    return tmp_path / "images"


def test_a_folder_has_a_class_per_sub_folder(folder):
    pictures = load(str(folder))
    assert (pictures.classes, pictures.labels.tolist()) == (("cat", "dog"), [0] * 10 + [1] * 10)
    assert pictures.images[0].shape == (3, 9, 9)  # the middle square
    assert pictures.images[0][:, 0, 0].tolist() == list(COLOURS["cat"])
    assert sorted(int(image[0, 4, 4]) for image in pictures.images[:10]) == list(range(10))
    assert pictures.at(6, torch.tensor([3])).shape == (1, 3, 6, 6)
    few = load(str(folder), data_images=10)
    assert few.labels.bincount().tolist() == [5, 5]
    assert few.digest != pictures.digest == load(str(folder)).digest


@pytest.mark.parametrize("form", ["PNG", "BMP", "GIF"])
@pytest.mark.parametrize("size", [(65535, 1025), (20_000, 20_000), (65535, 65535), (8193, 8192)])
def test_an_image_that_says_it_is_large_is_refused_before_it_is_unpacked(form, size, folder):
    content = bytearray(encoded(picture("cat", 1), form))
    layout, at = {"PNG": (">II", 16), "BMP": ("<ii", 18), "GIF": ("<HH", 6)}[form]
    struct.pack_into(layout, content, at, *size)
    if form == "PNG":
        struct.pack_into(">I", content, 29, zlib.crc32(content[12:29]))
    (folder / "cat" / f"bomb.{form.lower()}").write_bytes(content)
    with (
        little_memory(2**27),
        pytest.raises(InputError, match=r"bomb\.\w+ (is \d+ x \d+ pixels; give one of at most|cannot be read)"),
    ):
        load(str(folder))


def parquet(path, rows, features=None):
    datasets = pytest.importorskip("datasets")
    columns = {key: [row[key] for row in rows] for key in rows[0]}
    datasets.Dataset.from_dict(columns, features=features).to_parquet(path)
    return path


def rows(names):
    return [
        {"image": {"bytes": encoded(picture(name, n)), "path": None}, "label": name} for n, name in enumerate(names)
    ]


def test_rows_and_datasets_give_what_a_folder_gives(tmp_path):
    datasets = pytest.importorskip("datasets")
    names = ["dog", "cat"] * 8
    (tmp_path / "set").mkdir()
    as_words = load(str(parquet(tmp_path / "set" / "train.parquet", rows(names))))
    as_dataset = load(f"hf:{tmp_path / 'set'}")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    numbered = [row | {"label": ["cat", "dog"].index(row["label"])} for row in rows(names)]
    (tmp_path / "more").mkdir()
    as_numbers = load(str(parquet(tmp_path / "more" / "train.parquet", numbered, features)))
    for pictures in (as_words, as_dataset, as_numbers):
        assert pictures.classes == ("cat", "dog")
        assert pictures.labels.tolist() == [1, 0] * 8
        assert [int(image[0, 4, 4]) for image in pictures.images] == list(range(16))
    assert as_words.digest == as_dataset.digest == as_numbers.digest
    assert len(load(f"hf:{tmp_path / 'set'}", data_images=10).images) == 10


def test_a_part_of_a_file_that_is_sorted_by_class_has_every_class(tmp_path):
    names = ["cat"] * 60 + ["dog"] * 60
    path = str(parquet(tmp_path / "sorted.parquet", rows(names)))
    part, again = load(path, data_images=40), load(path, data_images=40)
    assert part.labels.tolist() == sorted(part.labels.tolist())  # in the file's order
    assert 10 < int(part.labels.sum()) < 30
    assert part.digest == again.digest


def photograph(folder, exif):
    """White above black, and how it is read."""
    side = Image.new("RGB", (8, 8), (0, 0, 0))
    side.paste((255, 255, 255), (0, 0, 8, 4))
    side.save(folder / "cat" / "photograph.png", exif=exif)
    return next(image for image in load(str(folder)).images if len(image.unique()) == 2)


@pytest.mark.parametrize("damaged", [{}, {0x011A: 72.0}], ids=["intact", "damaged"])
def test_a_photograph_is_turned_as_it_says(folder, damaged):
    turned = Image.Exif()
    turned[0x0112] = 6  # the stored first row is the right side of the picture
    turned.update(damaged)
    # a resolution is a fraction, 5; as a text, 2, Pillow reads it and cannot write it again
    pictures = photograph(folder, turned.tobytes().replace(b"\x01\x1a\x00\x05", b"\x01\x1a\x00\x02"))
    assert pictures[0, :, :4].max() == 0
    assert pictures[0, :, 4:].min() == 255


def test_a_photograph_whose_exif_is_none_is_read_as_it_is(folder):
    pictures = photograph(folder, b"Exif\x00\x00no such thing")
    assert pictures[0, :4].min() == 255
    assert pictures[0, 4:].max() == 0


def test_numbers_are_sorted_as_numbers(tmp_path):
    plain = [{"picture": encoded(picture(name, n)), "label": int(name)} for n, name in enumerate(["10", "9"] * 6)]
    assert load(str(parquet(tmp_path / "a.parquet", plain))).classes == ("9", "10")


def test_digits_are_those_of_scikit_learn():
    sklearn = pytest.importorskip("sklearn.datasets")
    pictures, true = load("digits"), sklearn.load_digits()
    assert torch.equal(pictures.labels, torch.from_numpy(true.target))
    grey = pictures.at(8, torch.arange(1797))[:, 0].numpy()
    assert abs(grey / 255 * 16 - true.images).max() < 0.05
    corpus, settings = TINY.load("digits")
    assert (settings.channels, settings.num_classes, len(corpus.train), corpus.held_out) == (1, 10, 1438, 359)


def test_the_split_is_fixed_and_sizes_are_of_the_same_images(small):
    corpus, settings = small
    pixels = Pixels(
        "x", ("a", "b"), torch.arange(40) % 2, [torch.full((1, 8, 8), n, dtype=torch.uint8) for n in range(40)]
    )
    split = ImageCorpus.of(pixels, settings.image_size, settings.test_sizes, settings.images)
    trained = set(split.train.sizes[8][:, 0, 0, 0].tolist())
    tested = [split.test.sizes[size][:, 0, 0, 0].tolist() for size in settings.test_sizes]
    assert trained == set(range(40)) - {8, 9, 18, 19, 28, 29, 38, 39}
    assert tested[0] == tested[1] == tested[2] == [8, 9, 18, 28, 29, 39]
    assert split.test.labels.tolist() == [n % 2 for n in tested[0]]
    assert corpus.held_out == 8


@pytest.mark.parametrize("period", [2, HELD_OUT, 7])
def test_every_class_is_trained_and_tested_however_rows_are_ordered(small, period):
    _, settings = small
    for labels in (torch.arange(70) % period, (torch.arange(70) % period).sort().values):
        split = ImageCorpus.of(
            Pixels("x", tuple(map(str, range(period))), labels, [torch.zeros(1, 8, 8, dtype=torch.uint8)] * 70),
            settings.image_size,
            settings.test_sizes,
            14,
        )
        assert set(split.train.labels.tolist()) == set(split.test.labels.tolist()) == set(range(period))
        assert int(split.test.labels.bincount().max() - split.test.labels.bincount().min()) <= 1


@pytest.mark.parametrize("source", ["places", "digits"])
def test_columns_of_what_has_none_are_refused(source):
    with pytest.raises(InputError, match=rf"label_column='x': data='{source}' has no columns"):
        load(source, label_column="x")


@pytest.mark.parametrize("channels", [1, 3])
def test_samples_are_images(channels):
    image = torch.arange(channels * 35, dtype=torch.uint8).view(channels, 5, 7)
    with Image.open(io.BytesIO(png(image))) as read:
        assert read.size == (7, 5)
        assert read.tobytes() == image.permute(1, 2, 0).contiguous().numpy().tobytes()


def test_what_cannot_serve_is_named(folder, tmp_path):
    for source, message in (
        ("", "data='': no such file or folder"),
        ("nowhere", r"data='nowhere': no such file or folder"),
        ("hf:", "data='hf:': name a dataset"),
        (str(folder / "cat" / "0.bmp"), "a folder with a sub-folder of images per class"),
        (str(folder / "cat" / "deeper"), "a folder with a sub-folder of images per class"),
        (str(folder / "cat"), "5 images of 1 classes; needs 10 images of two"),
    ):
        with pytest.raises(InputError, match=message):
            load(source)
    with pytest.raises(InputError, match=r"data_images=3: must lie between 10"):
        load("places", data_images=3)
    good = parquet(tmp_path / "a.parquet", rows(["cat", "dog"] * 5))
    for asked, message in (
        ({"image_column": "label"}, r"image_column='label': .* image \(struct.*\), label \(string\)"),
        ({"label_column": "\x1b[31m"}, "label_column="),
    ):
        with pytest.raises(InputError, match=message):
            load(str(good), **asked)
    empty = [row | {"image": None} if n == 6 else row for n, row in enumerate(rows(["cat", "dog"] * 5))]
    with pytest.raises(InputError, match="row 7 has no image; leave it out"):
        load(str(parquet(tmp_path / "b.parquet", empty)))
    for content, reason in (
        (b"", "cannot identify"),
        (encoded(picture("cat", 1))[:60], ""),
        (b"\x89PNG\r\n\x1a\n" * 9, ""),
    ):
        (folder / "cat" / "broken.png").write_bytes(content)
        with pytest.raises(InputError, match=rf"cat/broken\.png cannot be read as an image \(.*{reason}.*leave it out"):
            load(str(folder))
    (folder / "cat" / "broken.png").unlink()
    (folder / "rows.parquet").write_bytes(good.read_bytes())
    with pytest.raises(InputError, match=r"image files and rows \(rows\.parquet\)"):
        load(str(folder))


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_images_of_more_than_8_bits_are_refused_instead_of_turning_white(mode, folder):
    Image.new(mode, (8, 8)).save(folder / "cat" / "deep.tif")
    with pytest.raises(InputError, match=r"cat/deep\.tif has more than 8 bits per channel; save it with 8"):
        load(str(folder))


def test_an_image_that_would_fill_the_memory_is_not_opened(folder):
    head = png(torch.zeros(1, 1, 1, dtype=torch.uint8))
    bomb = head[:16] + (60_000).to_bytes(4, "big") * 2 + head[24:]
    (folder / "cat" / "bomb.png").write_bytes(bomb)
    with pytest.raises(InputError, match=r"cat/bomb\.png cannot be read as an image"):
        load(str(folder))


def test_data_that_do_not_fit_the_settings_are_refused(small):

    corpus, settings = small
    settings.check_data(corpus)
    for change, message in (
        ({"images": 9}, r"images=9: .* 8 images are held out"),
        ({"test_sizes": (8, 12)}, r"test_sizes=\(8, 12\)"),
        ({"num_classes": 5}, "num_classes=5: the images have 3 and 4"),
    ):
        with pytest.raises(InputError, match=message):
            replace(settings, **change).check_data(corpus)
