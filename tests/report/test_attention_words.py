"""What the page says of attention profiles follows from their numbers."""

from posenc.lab.evals.attention import attention_profile
from posenc.report.attention import sentences
from posenc.tasks import Sample
from references.small_models import small_model, tokens


def test_sentences_follow_from_the_numbers() -> None:
    texts = [Sample(ids, 80, needle=(at, at + 4)) for ids, at in zip(tokens(2, 90), (24, 64), strict=True)]
    profile = attention_profile(small_model("gemma3_text"), texts, depths=[0.25, 0.75], first_row=20)
    text = sentences({"none": profile.to_dict()})
    assert (
        f"{100 * profile.sink.mean():.0f} % of all attention of the unmodified model goes to the first 4 tokens"
        in text["sinks"]
    )
    layer, head = divmod(int(profile.sink.flatten().argmax()), 4)
    assert f"most in head {head} of layer {layer}, {100 * profile.sink.max():.0f} %" in text["sinks"]
    far = int(profile.distance_after.mean(1).argmax())
    assert f"{profile.distance_after.mean(1).max():.0f} tokens in layer {far}" in text["distance"]
    heads = profile.retrieving()
    best = max((0, 1), key=lambda at: sum(found.by_depth[at] for found in heads))
    assert f"most is at depth {(0.25, 0.75)[best]:g}" in text["needle"]
    assert "it is 5.0 % of the tokens" in text["needle"]
    turning = profile.turning["full_attention"]
    share = f"{int(turning.unfinished.sum())} of 8 pairs did not complete a full rotation within 64 tokens"
    assert share in text["pairs"]
    assert f"{100 * profile.unfinished_share[1]:.0f} % of the score norms" in text["pairs"]


def test_without_a_needle_there_is_no_sentence_on_it() -> None:
    profile = attention_profile(small_model("llama"), [tokens(1, 90)[0]], first_row=20).to_dict()
    assert set(sentences({"yarn": profile})) == {"sinks", "distance", "pairs"}
    assert "the model under yarn" in sentences({"yarn": profile})["sinks"]
