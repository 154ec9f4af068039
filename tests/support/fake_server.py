"""A program that behaves like a replica, well or badly: what the local fleet is tested against.

python fake_server.py [--die-after S] [--never-ready] [--die-at-once] [--deaf] [--drain S] [--child FILE]
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"status":"ok"}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--die-after", type=float)
    options.add_argument("--die-at-once", action="store_true")
    options.add_argument("--never-ready", action="store_true")
    options.add_argument("--deaf", action="store_true", help="ignores SIGTERM")
    options.add_argument("--drain", type=float, default=0.0)
    options.add_argument("--child", help="start a process of its own and write its pid here")
    given = options.parse_args()
    if given.die_at_once:
        sys.exit("the model file is broken")
    leave = threading.Event()
    signal.signal(signal.SIGTERM, signal.SIG_IGN if given.deaf else lambda *_: leave.set())
    threading.Thread(target=watch_stdin, daemon=True).start()
    if given.child:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        Path(given.child).write_text(str(child.pid))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    if not given.never_ready:
        print(f"listening on http://127.0.0.1:{server.server_port}", flush=True)
    leave.wait(given.die_after)
    if not leave.is_set():
        print("something broke inside", file=sys.stderr, flush=True)
        os._exit(3)
    time.sleep(given.drain)


def watch_stdin() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 1024):
            pass
    os._exit(0)


if __name__ == "__main__":
    main()
