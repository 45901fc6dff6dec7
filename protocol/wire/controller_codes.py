"""Requests to RocketMQ 5's controller, and the codes of its refusals."""

from typing import Final

ALTER_SYNC_STATE_SET: Final = 1001
ELECT_MASTER: Final = 1002
REGISTER_BROKER: Final = 1003
GET_METADATA_INFO: Final = 1005
GET_SYNC_STATE_DATA: Final = 1006
GET_NEXT_BROKER_ID: Final = 1012
APPLY_BROKER_ID: Final = 1013

NOT_LEADER: Final = 2007  # it is not the controller that leads; a change may have happened
NEED_TO_BE_REGISTERED: Final = 2010
MASTER_STILL_EXISTS: Final = 2011
BROKER_ID_INVALID: Final = 2014
ANSWERS: Final = range(2000, 2100)  # definite refusals: the request was not carried out
