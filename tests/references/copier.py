"""A reader that copies, written down rather than trained."""

from posenc.tasks import Sample


def copied(ids: list[int], reach: int) -> int | None:
    """What followed the longest earlier match of the text's end (the nearest of several), among those whose next token lies
    at most `reach` tokens before the one to be predicted; None if not even one token matches."""
    best, longest = None, 0
    for distance in range(1, min(reach, len(ids) - 1) + 1):
        earlier = ids[: len(ids) - distance]
        match = 0
        while match < len(earlier) and earlier[-1 - match] == ids[-1 - match]:
            match += 1
        if match > longest:
            best, longest = ids[len(ids) - distance], match
    return best


def accuracy(sample: Sample, reach: int) -> float:
    """The share of a sample's scored tokens that the copier predicts."""
    ids = sample.ids.tolist()
    hits = [copied(ids[:at], reach) == ids[at] for at in range(sample.prompt_tokens, len(ids))]
    return sum(hits) / len(hits)
