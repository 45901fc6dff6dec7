"""Every figure that the documents state, as a command. tests/peers knows how to get the peers."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
