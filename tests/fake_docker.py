"""A container engine's socket with answers to order: the same HTTP over a unix socket that Docker speaks, and no containers behind it."""
import contextlib
import json
import re
import socketserver
import threading
from http.server import BaseHTTPRequestHandler

IMAGE = {"Id": "sha256:1", "RepoTags": ["eyrie:gpu"], "Config": {"Labels": {"eyrie.target": "gpu", "eyrie.identity": "f" * 16}}}
CONTAINER = {"Id": "c1", "Config": {"Tty": False}, "State": {"Status": "created"}}


class Engine(socketserver.ThreadingUnixStreamServer):
    """answers: {(method, pattern of the path): (status, body), or None to hang up}, before the usual ones. calls: what was asked, [(method,
    path, body)]."""

    daemon_threads = True

    def __init__(self, path, answers=(), name="Engine", api="1.41"):
        self.calls = []
        version = {"Version": "20.10.24", "ApiVersion": api, "MinAPIVersion": "1.12", "Components": [{"Name": name, "Version": "1"}]}
        self.answers = [*dict(answers).items(), (("GET", r"/version"), (200, version)), (("GET", r"/info"), (200, {"Driver": "overlay2"})),
                        (("GET", r"/images/\S+/json"), (200, IMAGE)), (("GET", r"/containers/json"), (200, [])),
                        (("POST", r"/containers/create"), (201, {"Id": "c1"})), (("GET", r"/containers/c1/json"), (200, CONTAINER)),
                        (("POST", r"/containers/c1/attach"), (200, None)), (("POST", r"/containers/c1/start"), (204, None)),
                        (("POST", r"/containers/c1/wait"), (200, {"StatusCode": 0})), (("DELETE", r"/containers/c1"), (204, None))]
        super().__init__(str(path), Handler)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = re.sub(r"^/v[\d.]+", "", self.path.partition("?")[0])
        self.server.calls.append((self.command, path, json.loads(body) if body else None))
        found = next((a for (method, pattern), a in self.server.answers if method == self.command and re.fullmatch(pattern, path)),
                     (404, {"message": f"no answer to {self.command} {path}"}))
        if found is None:
            self.close_connection = True
            return
        status, said = found
        text = b"" if said is None else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
        self.close_connection = path.endswith("/attach")

    do_GET = do_POST = do_DELETE = do_HEAD = answer

    def log_message(self, *arguments):
        pass

    def address_string(self):
        return "unix"


@contextlib.contextmanager
def fake(folder, **options):
    """An engine on the socket `folder`/s; its DOCKER_HOST is `unix://<folder>/s`."""
    with Engine(folder / "s", **options) as engine:
        thread = threading.Thread(target=engine.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield engine
        finally:
            engine.shutdown()
