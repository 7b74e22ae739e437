"""What can be set in `kv_connector_extra_config`."""

import dataclasses
import os

LOADS = ("beside", "layers")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Each field is a key of the extra configuration."""

    # The socket of the node; without it HINTERLAND_SOCKET, or the usual place.
    socket: str | None = None
    # Any text: only engines with the same one share blocks. Change it when weights were changed in place.
    namespace: str = ""
    # `beside`: a request waits while its blocks are copied, others go on, and no token is computed before all bytes are
    # there. `layers`: the step starts at once and each layer waits for its own bytes.
    load: str = "beside"
    # Whether blocks of other racks and of the node's disk count as there. One message to the node for a prompt that is not
    # wholly in the memory of this host.
    remote: bool = True
    # Whether blocks that fill up while tokens are generated are saved, too, or only those of prompts.
    save_decode: bool = True
    # Whether a second thread saves a layer while the next one is computed.
    save_beside: bool = True
    # Threads that copy the blocks of one request.
    copy_threads: int = min(2, len(os.sched_getaffinity(0)))
    # Whether a cache in the memory of a GPU is shared, too. No GPU has run it yet.
    device: bool = False
    # Seconds between attempts to reach a node that is not there, and between looks whether it is still the same one.
    check_seconds: float = 5.0

    @classmethod
    def of(cls, extra):
        """Takes the extra configuration; ValueError for what is not known or does not fit."""
        known = {field.name: field for field in dataclasses.fields(cls)}
        unknown = sorted(set(extra) - set(known))
        if unknown:
            raise ValueError(
                f"hinterland: there is no setting {', '.join(unknown)} (hint: there are {', '.join(sorted(known))})"
            )
        settings = cls(**extra)
        for name, field in known.items():
            value, wanted = getattr(settings, name), type(getattr(cls, name))
            if name == "socket":
                wanted = (str, type(None))
            elif wanted is float:
                wanted = (int, float)
            if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
                raise ValueError(f"hinterland: {name} cannot be {value!r} (hint: as in {field.default!r})")
        if settings.load not in LOADS:
            raise ValueError(f"hinterland: load cannot be {settings.load!r} (hint: {' or '.join(LOADS)})")
        if not 1 <= settings.copy_threads <= 64:
            raise ValueError("hinterland: copy_threads must be from 1 to 64")
        if settings.check_seconds < 0:
            raise ValueError("hinterland: check_seconds cannot be negative")
        return settings
