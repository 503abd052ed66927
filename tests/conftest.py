import torch
from hypothesis import settings

torch.set_num_threads(1)  # the suite runs in several processes
settings.register_profile("posenc", deadline=None, print_blob=True)
settings.load_profile("posenc")
