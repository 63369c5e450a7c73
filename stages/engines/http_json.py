"""JSON over HTTP with one server: calls from many threads, all of which can be cut off at once."""
import http.client
import json
import socket
import threading
import urllib.parse


class Refused(RuntimeError):
    """The server answered that it will not do this (4xx): asking again would not help."""


class Broken(RuntimeError):
    """No whole answer came, or one that says the server is at fault (5xx): the next try may do better."""


class Http:
    """Each call has a connection of its own: uvicorn closes idle ones after 5 s, and on one machine a new one takes 0.1 ms."""

    def __init__(self, url):
        """url: `http://host:port`."""
        self.place = urllib.parse.urlsplit(url)
        self.lock, self.live, self.closed = threading.Lock(), set(), False

    def call(self, path, body=None, seconds=30.0):
        """The parsed answer to a POST of `body` (a GET without one), None where it is no JSON. Raises Refused or Broken with what the
        server said."""
        connection = self._open(seconds)
        try:
            response = self._ask(connection, path, body)
            text = response.read()
            return json.loads(text) if response.headers.get_content_type() == "application/json" else None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Broken(f"{path}: {type(error).__name__}: {error}") from None
        finally:
            self._close(connection)

    def events(self, path, body, seconds):
        """Yield the events of a server-sent stream, parsed, up to its [DONE]. Raises as `call`, also for a stream that ends early."""
        connection = self._open(seconds)
        try:
            for line in self._ask(connection, path, body):
                if line.startswith(b"data: [DONE]"):
                    return
                if line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise Refused(f"{path}: {message(line[6:])}")
                    yield event
            raise Broken(f"{path}: the stream ended without [DONE]")
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Broken(f"{path}: {type(error).__name__}: {error}") from None
        finally:
            self._close(connection)

    def cut(self):
        """End every call in flight and refuse new ones: threads that wait for an answer return at once."""
        with self.lock:
            self.closed = True
            for connection in self.live:
                try:
                    connection.sock.shutdown(socket.SHUT_RDWR)
                except (OSError, AttributeError):
                    pass  # its own thread was faster

    def mend(self):
        """Allow calls again."""
        self.closed = False

    def _ask(self, connection, path, body):
        if body is None:
            connection.request("GET", path)
        else:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status >= 500:
            raise Broken(f"{path}: {response.status}: {message(response.read())}")
        if response.status >= 400:
            raise Refused(f"{path}: {response.status}: {message(response.read())}")
        return response

    def _open(self, seconds):
        connection = http.client.HTTPConnection(self.place.hostname, self.place.port or 80, timeout=seconds)
        try:
            connection.connect()
        except OSError as error:
            raise Broken(f"{self.place.geturl()} cannot be reached: {error}") from None
        with self.lock:
            if self.closed:
                connection.close()
                raise Broken("the calls were cut off")
            self.live.add(connection)
        return connection

    def _close(self, connection):
        with self.lock:
            self.live.discard(connection)
        connection.close()


def message(text):
    """What an error's body says, in SGLang's two forms; else its first 300 bytes."""
    try:
        said = json.loads(text)
        said = said.get("error", said)
        return said["message"] if isinstance(said, dict) else str(said)
    except (ValueError, KeyError, AttributeError):
        return text[:300].decode("utf-8", "replace")
