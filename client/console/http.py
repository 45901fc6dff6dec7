"""HTTP: files of the package, answers as JSON, and the checks before either."""

from __future__ import annotations

import logging
import socket
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import msgspec

from aerobee.client.console.app import Answer, Console, refused
from aerobee.client.console.safety import HEADERS, is_our_host, is_same_site, is_within
from aerobee.client.console.sessions import Viewer

log = logging.getLogger("aerobee.console")

BASE: Final = "/console/"
COOKIE: Final = "aerobee_console"
TOKEN_HEADER: Final = "X-Aerobee-Token"
BODY_MAX: Final = 8 << 20
PERSON_MAX: Final = 200
PEER_SECONDS: Final = 30.0
_STATIC: Final = Path(__file__).parent / "static"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


def static_files() -> dict[str, tuple[str, bytes]]:
    """Every static file by its path: nothing else is served."""
    return {
        path.relative_to(_STATIC).as_posix(): (_TYPES[path.suffix], path.read_bytes())
        for path in sorted(_STATIC.rglob("*"))
        if path.suffix in _TYPES
    }


class ConsoleServer(ThreadingHTTPServer):
    """Listens itself, or is handed connections that another process accepted."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, console: Console, address: tuple[str, int] | None) -> None:
        self.console = console
        self.files = static_files()
        self.proxies = console.options.networks()
        self.address_family = socket.AF_INET6 if address and ":" in address[0] else socket.AF_INET
        super().__init__(
            address or ("127.0.0.1", 0), _Handler, bind_and_activate=address is not None
        )

    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # HTTPServer's does a reverse DNS lookup, which nothing needs

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a request of %s failed", client_address, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "aerobee"
    sys_version = ""
    timeout = PEER_SECONDS
    server: ConsoleServer

    # -- methods

    def do_GET(self) -> None:
        with self.server.console.answering():
            self._get()

    def do_POST(self) -> None:
        with self.server.console.answering():
            self._post()

    def _get(self) -> None:
        if not self._is_meant():
            return
        parts = urlsplit(self.path)
        if parts.path in ("/", BASE.rstrip("/")):
            self._send(Answer(HTTPStatus.FOUND, b""), {"Location": BASE})
            return
        if not parts.path.startswith(BASE):
            self._send(refused(HTTPStatus.NOT_FOUND, f"the console is at {BASE}"))
            return
        name = parts.path.removeprefix(BASE)
        if name.startswith("api/"):
            self._read_api(name.removeprefix("api/"), parts.query)
        elif name.startswith("static/"):
            self._send_file(name.removeprefix("static/"))
        else:  # single-page application: the script reads the path
            self._send_file("index.html")

    do_HEAD = do_GET

    def _post(self) -> None:
        if not self._is_meant():
            return
        headers = self.headers
        host, origin = headers.get("Host", ""), headers.get("Origin")
        name = urlsplit(self.path).path
        body = self._body()
        if body is None:
            return
        if not is_same_site(host, origin, headers.get("Sec-Fetch-Site")):
            self._send(refused(HTTPStatus.FORBIDDEN, "the request came from another site"))
        elif headers.get_content_type() != "application/json":
            self._send(refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "changes must be sent as JSON"))
        elif not name.startswith(f"{BASE}api/"):
            self._send(refused(HTTPStatus.NOT_FOUND, f"the console is at {BASE}"))
        else:
            self._write_api(name.removeprefix(f"{BASE}api/"), body)

    # -- steps

    def _is_meant(self) -> bool:
        """Refuse foreign host names (DNS rebinding), and bodies without a length."""
        if not is_our_host(self.headers.get("Host", ""), self.server.console.options.hosts):
            text = "this name is not the console's: --allow-host (broker: consoleHosts) adds one"
            self.close_connection = True
            self._send(refused(HTTPStatus.MISDIRECTED_REQUEST, text))
            return False
        if self.headers.get("Transfer-Encoding"):
            self.close_connection = True
            self._send(refused(HTTPStatus.LENGTH_REQUIRED, "a body needs a Content-Length"))
            return False
        if self.server.console.options.auth_header and not self._person():
            text = "requests must come through the proxy that authenticates users"
            self.close_connection = True
            self._send(refused(HTTPStatus.UNAUTHORIZED, text))
            return False
        return True

    def _person(self) -> str:
        """The user that the proxy names. A duplicate header is a forgery, and refused."""
        name = self.server.console.options.auth_header
        said = self.headers.get_all(name, []) if name else []
        is_believed = is_within(self.client_address[0], self.server.proxies)
        return str(said[0]).strip()[:PERSON_MAX] if is_believed and len(said) == 1 else ""

    def _viewer(self) -> Viewer:
        return Viewer(self._cookie(), self._person())

    def _body(self) -> bytes | None:
        text = self.headers.get("Content-Length", "")
        if not text.isascii() or not text.isdigit() or int(text) > BODY_MAX:
            self.close_connection = True
            status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE if text.isdigit() else 411
            self._send(
                refused(status, f"a body needs a Content-Length of at most {BODY_MAX} bytes")
            )
            return None
        return self.rfile.read(int(text))

    def _read_api(self, name: str, query: str) -> None:
        try:
            params = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=50))
        except ValueError as error:
            self._send(refused(HTTPStatus.BAD_REQUEST, str(error)))
            return
        self._send(self.server.console.read(name, params, self._viewer()))

    def _write_api(self, name: str, body: bytes) -> None:
        try:
            params = msgspec.json.decode(body or b"{}", type=dict[str, Any])
        except msgspec.DecodeError as error:
            self._send(refused(HTTPStatus.BAD_REQUEST, f"the body is not a JSON object: {error}"))
            return
        token = self.headers.get(TOKEN_HEADER)
        peer = self.client_address[0]
        self._send(self.server.console.write(name, params, self._viewer(), token, peer))

    def _cookie_name(self) -> str:
        """With the port in it: browsers share cookies between the ports of a host."""
        port = self.headers.get("Host", "").rpartition(":")[2]
        return f"{COOKIE}_{port}" if port.isdigit() else COOKIE

    def _cookie(self) -> str | None:
        try:
            found = SimpleCookie(self.headers.get("Cookie", "")).get(self._cookie_name())
        except CookieError:
            return None
        return found.value if found is not None else None

    def _send_file(self, name: str) -> None:
        found = self.server.files.get(name)
        if found is None:
            self._send(refused(HTTPStatus.NOT_FOUND, f"there is no file {name!r}"))
        else:
            self._send(Answer(HTTPStatus.OK, found[1], found[0]))

    def _send(self, answer: Answer, extra: dict[str, str] | None = None) -> None:
        self.send_response(answer.status)
        for name, value in {**HEADERS, **(extra or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        if answer.download:
            self.send_header("Content-Disposition", f'attachment; filename="{answer.download}"')
        if answer.cookie:
            value = f"{self._cookie_name()}={answer.cookie}"
            self.send_header("Set-Cookie", f"{value}; Path={BASE}; HttpOnly; SameSite=Strict")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:
        """No access log: pages poll every few seconds."""
