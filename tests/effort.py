"""How much of what is tried at random `make test` tries: a share. `make test-long` tries all."""

import os


def examples(all_of_them: int, share: int) -> int:
    return all_of_them if "AEROBEE_LONG" in os.environ else share
