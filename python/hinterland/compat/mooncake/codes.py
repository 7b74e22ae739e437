"""The numbers that Mooncake's calls return for what went wrong."""

INTERNAL = -1
NO_ROOM = -200
INVALID_KEY = -400
INVALID_PARAMETERS = -600
NOT_FOUND = -704
ALREADY_EXISTS = -705
TRANSFER_FAILED = -800
NO_NODE = -900
