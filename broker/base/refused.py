"""A refused request: the response code for the client, and a sentence."""


class Refused(Exception):
    """Raised by services, turned into an answer by handlers."""

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
