"""The models of the site's page that predicts."""

import pytest
from website import predicted

from posenc.report import predict


def test_they_are_those_of_compare_and_lose_little_by_rounding():
    models, texts = predicted.stored()
    settings = predicted.SETTINGS
    assert tuple(models) == predicted.NAMES
    assert len(texts) == predict.PASSAGES
    assert predicted.FILE.stat().st_size < 1_500_000
    model = models["rope"].into(settings.make_model(settings.make_encoding("rope")))
    assert predicted.loss(model, texts) == pytest.approx(models["rope"].about["loss"], abs=0.02)


def test_the_page_loads_a_script_for_each():
    files = predicted.files()
    assert set(files) == {"predictor.html", *(f"predictor/{name}.js" for name in predicted.NAMES)}
    assert sum(map(len, files.values())) < 2_500_000
