"""A planted bug: an `aerobee broker` that answers without having synced its files.

    python -m crash.without_sync broker --set ...        (in tests/)

The function is replaced before the broker's modules take it, and the compiled part, which syncs by
itself, is left out.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    os.environ["AEROBEE_PURE"] = "1"
    os.fdatasync = lambda fd: None
    from aerobee.client.cli import main

    sys.argv[0] = "aerobee"
    sys.exit(main())
