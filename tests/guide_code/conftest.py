import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "docs"))  # where the guide's code is
