"""A request that cannot be done: the code that a client understands, and a sentence."""


class Refused(Exception):
    """Raised by services, turned into an answer by handlers."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
