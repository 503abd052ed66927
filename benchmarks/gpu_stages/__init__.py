"""The stages of benchmarks/gpu.py, most valuable first."""

from gpu_stages.attention import Attention, Backward, Tiles
from gpu_stages.checks import Checks
from gpu_stages.compare import Compare
from gpu_stages.limits import Limits
from gpu_stages.models import Decoding, Training
from gpu_stages.rotary import RotaryKernel
from gpu_stages.stage import Stage

STAGES: dict[str, Stage] = {
    "limits": Limits(),
    "checks": Checks(),
    "rotary": RotaryKernel(),
    "attention": Attention(),
    "tiles": Tiles(),
    "backward": Backward(),
    "training": Training(),
    "decoding": Decoding(),
    "compare": Compare(),
}
