import os

import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is first imported
torch.set_num_threads(1)  # the suite runs in several processes
settings.register_profile("posenc", deadline=None, print_blob=True)
settings.load_profile("posenc")
