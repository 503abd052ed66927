"""A folder of a complete small model, and a copy that a test may damage."""

import shutil

import pytest

from hostile.commands import prepare


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    folder = tmp_path_factory.mktemp("complete")
    prepare(folder)
    return folder / "model"


@pytest.fixture
def model(complete, tmp_path):
    return shutil.copytree(complete, tmp_path / "model")
