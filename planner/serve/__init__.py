"""A search that runs, followed in a browser: plans stream in, the bound rises, a button ends it.

Imports search and view; only the command line imports it. Begin with `live.py`, what is known of the search while it
runs; `edits.py` judges orders changed by hand, `app.py` answers a browser, `server.py` is the loopback server.
"""

from .edits import judged
from .live import Live
from .server import Server, require_server

__all__ = ["Live", "Server", "judged", "require_server"]
