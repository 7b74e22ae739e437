"""Mooncake's package, with Hinterland's store in place of its own; its other modules are used where it is installed."""

import pkgutil

__path__ = pkgutil.extend_path(__path__, __name__)
