"""`python -m aerobee.broker.settings` prints docs/settings.md."""

import sys

from aerobee.broker.settings.report import settings_page

sys.stdout.write(settings_page())
