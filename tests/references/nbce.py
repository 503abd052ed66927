"""NBCE as in its authors' script (bojone/NBCE test.py), by loops: each prompt alone, unpadded, uncached."""

import math

import torch
from transformers import TopPLogitsWarper


def merge(rows, beta, eta, top_p, previous, pooling="min_entropy"):
    """rows: a list of lists of log-probabilities, the one without a context first. Returns scores and an index."""
    cut = [
        TopPLogitsWarper(top_p)(None, torch.tensor([row], dtype=torch.float64))[0].tolist() if top_p < 1 else row
        for row in rows
    ]
    entropies = []
    for row in cut[1:]:
        entropies.append(-sum(math.exp(x) * min(max(x, -100.0), 0.0) for x in row))
    if previous is not None:
        entropies[previous] -= eta
    chosen = min(range(len(entropies)), key=lambda k: entropies[k])
    scores = []
    for token, without in enumerate(cut[0]):
        with_context = cut[1 + chosen][token]
        if without > -100 and with_context > -math.inf:
            scores.append((1 + beta) * with_context - beta * without)
        else:
            scores.append(with_context)
    return scores, chosen


def generate(model, prompts, steps, ends=(), **settings):
    """The greedy tokens and the contexts followed; `prompts` are lists of token ids, the one without a context first."""
    tokens, followed, previous = [], [], None
    for _ in range(steps):
        rows = []
        for prompt in prompts:
            with torch.no_grad():
                logits = model(torch.tensor([prompt + tokens]), use_cache=False).logits[0, -1]
            rows.append(logits.double().log_softmax(-1).tolist())
        scores, previous = merge(rows, previous=previous, **settings)
        token = max(range(len(scores)), key=lambda t: scores[t])
        if token in ends:
            break
        tokens.append(token)
        followed.append(previous)
    return tokens, followed
