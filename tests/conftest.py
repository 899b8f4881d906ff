"""What every test file may import: `builders` lives beside this file. Laws meet the same random worlds every time,
unless SPECSIM_LAWS=explore asks for new ones."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("SPECSIM_LAWS", "same"))
