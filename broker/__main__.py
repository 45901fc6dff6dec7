"""`python -m aerobee.broker` is `aerobee broker`; with --namesrv the name service alone."""

import argparse
import sys

from aerobee.broker.base.lean_import import lean_import

with lean_import():
    from aerobee.broker.daemon.main import main_broker, main_namesrv


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m aerobee.broker", description=__doc__)
    parser.add_argument("--config", metavar="FILE", help="settings in RocketMQ's format")
    parser.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], dest="sets")
    parser.add_argument("--namesrv", action="store_true", help="run the name service alone")
    given = parser.parse_args()
    return (main_namesrv if given.namesrv else main_broker)(given.config, given.sets)


if __name__ == "__main__":
    sys.exit(main())
