"""Each sentence of SECURITY.md that says never, no, all or nothing is registered here with the tests that prove it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ABSOLUTE = re.compile(r"\b(all|always|any|each|every|neither|never|no|none|nothing|only|refused)\b", re.IGNORECASE)
PROVEN = {
    "worker processes through a folder that only you can read": "test_scratch.py::test_a_temporary_folder_is_read_by_its_user_alone",
    "Processes of one run send each other pickles": "hostile/test_trust.py::test_code_is_imported_for_the_command_line_and_python_arguments_alone",
    "Data never run code": "hostile/test_trust.py::test_every_reader_of_files_is_known",
    "where it is `MODULE:NAME` or `FILE:NAME`, it is refused": "hostile/test_trust.py::test_no_setting_of_a_file_imports",
    "a link may lead out of the folder only from a snapshot": "hostile/test_files_models.py::test_links_are_followed_in_the_cache_of_the_hub_alone",
    "Pickles (`.bin`, `.pt`, `.pth`, `.ckpt`) are refused": "hostile/test_files_models.py::test_a_pickle_is_never_opened",
    "Code beside the weights is never run": "hostile/test_files_models.py::test_code_beside_the_weights_is_not_run",
    "neither an attention implementation nor a kernel": "hostile/test_checkpoints.py::test_the_attention_of_a_configuration_is_not_followed",
    "reader is another package, are refused": "hostile/test_checkpoints.py::test_quantised_weights_are_refused_before_their_package_is_imported",
    "hub run no code": "",  # datasets 4, which pyproject.toml requires, has no loader of code
    "pages load nothing from elsewhere": "hostile/test_html.py::test_a_browser_shows_a_name_and_runs_none",
    "Each is checked before anything of the size is allocated": "hostile/test_trust.py::test_no_integer_option_allocates_more_than_is_stated",
    "nothing in the files that would change the output is left out": "hostile/test_hub.py::test_weights_that_would_change_the_output_are_refused",
    "in all at most 2 times the numbers in its files": "hostile/test_trust.py::test_the_bounds_that_security_states_are_those_of_the_code",
    "no deeper than Python's recursion limit": "hostile/test_trust.py::test_nesting_is_bounded",
    "anybody who can reach it can run code": "",  # a warning, no promise
    "A fault in any of these": "",
}


def sentences():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    text = re.sub(r"\s+", " ", text[text.index("## Trusted") :].replace("\n|", "\n. |").replace("\n-", "\n. -"))
    return re.split(r"(?<=[.;:])\s", text)


def test_every_absolute_sentence_is_registered():
    found = [each for each in sentences() if ABSOLUTE.search(each)]
    assert len(found) > 10
    assert [each for each in found if not any(phrase in each for phrase in PROVEN)] == []
    assert [phrase for phrase in PROVEN if not any(phrase in each for each in found)] == []


@pytest.mark.parametrize("test", sorted(filter(None, set(PROVEN.values()))))
def test_the_test_of_a_sentence_exists(test):
    file, name = test.split("::")
    assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8")


def test_the_version_of_datasets_that_runs_no_code_is_required():
    assert re.search(r'"datasets>=([4-9]|\d\d)', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
