"""Writes cluster.toml for processes on this computer, with the link between two of them as gloo measures it now.

python examples/link.py cluster.toml [PROCESSES]
"""

import sys
from pathlib import Path

from contraflow.executor.profile import measure_link

TEMPLATE = """\
# {count} processes on this computer; the link is what gloo measured between two of them.
[[nodes]]
devices = {count}
device = "cpu"
link = {{bandwidth = "{megabytes:.0f}MB/s", latency = "{microseconds:.0f}us"}}
"""

if __name__ == "__main__":
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    bandwidth, latency_s = measure_link()
    text = TEMPLATE.format(count=count, megabytes=bandwidth / 1e6, microseconds=latency_s * 1e6)
    Path(sys.argv[1]).write_text(text)
    print(text, end="")
