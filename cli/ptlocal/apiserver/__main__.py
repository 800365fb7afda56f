"""`python -m ptlocal.apiserver --data DIR --port N --kubeconfig FILE`: run the server until SIGTERM or SIGINT.

Prints one line when it answers requests. Port 0 takes the port of the last run on this data directory if that is free,
so that clients find the server again after a restart, else any free one.
"""

import argparse
import asyncio
import fcntl
import json
import logging
import signal
import socket
import sys
from pathlib import Path
from typing import TextIO

from aiohttp import web

from ptlocal.apiserver.backend import Cluster
from ptlocal.apiserver.http.kubeconfig import write_kubeconfig
from ptlocal.apiserver.http.server import Server
from ptlocal.apiserver.http.tls import Credentials
from ptlocal.paths import Layout

HOST = "127.0.0.1"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ptlocal.apiserver", description="The embedded API server.")
    parser.add_argument("--data", required=True, type=Path, help="data directory; made where it is missing")
    parser.add_argument("--port", type=int, default=0, help="0: the last one, or any free one")
    parser.add_argument("--kubeconfig", type=Path, help="where to write it (default: DATA/kubeconfig)")
    return parser.parse_args()


def _listen(layout: Layout, port: int) -> socket.socket:
    remembered = layout.data / "apiserver.port"
    tries = [port] if port else [*([int(remembered.read_text())] if remembered.exists() else []), 0]
    for number in tries:
        try:
            listener = socket.create_server((HOST, number), backlog=512)
        except OSError as error:
            if number == tries[-1]:
                raise SystemExit(
                    f"cannot listen on {HOST}:{number}: {error.strerror}\n"
                    "hint: another process uses this port; --port 0 takes a free one"
                ) from None
            continue
        remembered.write_text(str(listener.getsockname()[1]))
        return listener
    raise AssertionError("unreachable: the last try returns or raises")


def _lock(layout: Layout) -> TextIO:
    """Lock the database: two servers on it would each count resourceVersions on their own."""
    held = (layout.data / "apiserver.lock").open("w")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise SystemExit(
            f"another API server runs on {layout.data}\nhint: stop it, or give --data another directory"
        ) from None
    return held


async def _serve(layout: Layout, port: int, kubeconfig: Path) -> None:
    layout.data.mkdir(parents=True, exist_ok=True)
    held = _lock(layout)
    credentials = Credentials(layout.pki)
    cluster = Cluster(layout)
    listener = _listen(layout, port)
    bound = int(listener.getsockname()[1])
    server = Server(cluster, credentials.token)
    server.address = f"{HOST}:{bound}"
    runner = web.AppRunner(server.application(), access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    await web.SockSite(runner, listener, ssl_context=credentials.context()).start()
    write_kubeconfig(kubeconfig, bound, credentials)
    print(json.dumps({"ready": True, "server": f"https://{HOST}:{bound}", "kubeconfig": str(kubeconfig)}), flush=True)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    await runner.cleanup()
    cluster.store.close()
    held.close()


def main() -> None:
    """Run the server from the command line."""
    arguments = _arguments()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    layout = Layout(arguments.data.expanduser().resolve())
    asyncio.run(_serve(layout, arguments.port, arguments.kubeconfig or layout.kubeconfig))


if __name__ == "__main__":
    main()
