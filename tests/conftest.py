"""What every test file may import: `builders` lives beside this file.

Laws meet the same random worlds every time, unless SPECSIM_LAWS=explore asks for new ones.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

# Where the tests were started in the background, SIGINT is ignored, and commands that they start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("SPECSIM_LAWS", "same"))
