# SPDX-License-Identifier: Apache-2.0
"""What an extension changed, said in words and numbers."""

from dataclasses import asdict, dataclass, field
from typing import Any

TUNING = {
    "works without": "works without fine-tuning",
    "needs it": "needs fine-tuning",
    "comes with it": "for models that were fine-tuned for these numbers",
}


@dataclass(frozen=True)
class Extension:
    """What `extend` did to a model.

    method: with every option that was set. trained_length: tokens the model was good for. new_length: tokens it is made for
    now, None: no method that depends on it. original_length: tokens before the scaling that the model was loaded with.
    schedule, map: as data, None where there is none. stretch: how many times slower each pair turns than in plain RoPE,
    fastest pair first. attention_factor: multiplies cos and sin. attention: other parts of the attention. exact_tokens: so
    many from the start of any text are read exactly as before, by construction. tuning: whether the method works without
    fine-tuning. raw_keys: the cache holds unrotated keys. cache_bytes_per_token: for one sequence, in the model's dtype;
    the same as before. reach: tokens within which no distance is beyond those of training, by construction; None: all.
    plain: plain transformers can do the same from the saved configuration. layers: changed, of all.
    notes: what else is worth knowing.
    """

    model_type: str
    method: str
    trained_length: int
    new_length: int | None
    original_length: int
    schedule: dict[str, Any] | None
    map: dict[str, Any] | None
    attention: tuple[str, ...]
    stretch: tuple[float, ...]
    attention_factor: float
    exact_tokens: int
    tuning: str
    raw_keys: bool
    cache_bytes_per_token: int
    plain: bool
    layers: tuple[int, int]
    reach: int | None = None
    notes: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self)

    @property
    def expected(self) -> str:
        """What to expect of texts that the model could read before, by construction."""
        if self.exact_tokens >= self.trained_length:
            return f"texts of up to {self.trained_length} tokens are read exactly as before"
        if self.exact_tokens > 0:
            return f"the first {self.exact_tokens} tokens of a text are read exactly as before, later ones differently"
        return "every text is read differently, short ones too"

    def __str__(self) -> str:
        length = self.reach if self.new_length is None else self.new_length
        new = "any length" if length is None else f"{length} tokens"
        lines = [f"{self.model_type} extended by {self.method}: from {self.trained_length} tokens to {new}"]
        if self.schedule is not None:
            kept = sum(abs(s - 1) < 1e-9 for s in self.stretch)
            most = max(self.stretch)
            lines.append(
                f"frequencies: {kept} of {len(self.stretch)} pairs as in plain RoPE, others up to {most:.4g} times slower; "
                f"cos and sin times {self.attention_factor:.4g}"
            )
        if self.map is not None:
            options = ", ".join(f"{key} {value}" for key, value in self.map.items() if key != "name")
            lines.append(f"positions: {self.map['name']} with {options}")
        if self.attention:
            lines.append(f"attention: {', '.join(self.attention)}")
        lines.append(f"layers: {self.layers[0]} of {self.layers[1]} changed")
        untouched = "longer ones no better than before: nothing but the length in the configuration was changed"
        tuning = TUNING[self.tuning] if self.layers[0] else untouched
        lines.append(f"expected, by construction: {self.expected}; {tuning}")
        keys = "unrotated keys, all turned again at each step" if self.raw_keys else "rotated keys, as before"
        lines.append(f"cache: {self.cache_bytes_per_token} bytes a token, as before; {keys}")
        saved = (
            "does the same from the saved configuration" if self.plain else "cannot express this: extend after loading"
        )
        lines.append(f"plain transformers {saved}")
        return "\n  ".join([*lines, *self.notes])
