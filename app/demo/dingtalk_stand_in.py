"""A strict DingTalk in a process of its own. Its log is evidence, so it shares no code with the sender: stdlib only.

It verifies what the real robot verifies (HMAC over the decoded query, clock skew of an hour, JSON in UTF-8, 20,000
bytes, keyword, title and text, every mention also in the text), allows 20 posts a minute and then blocks. Answers are
HTTP 200 with an errcode. Each post is one line of the log; the token and the signature never are.

    python -m tunewarden.demo.dingtalk_stand_in --log posts.jsonl --secret-file secret.txt --pretty

prints its port first. Scripted failures, one for each next post, by `--script '["http:500"]'` or POST /script:
    http:500          that status with a text              errcode:-1[:errmsg]   that code with HTTP 200
    html:502          that status with an HTML page        hang:2                takes the post, answers after 2 s
    close             takes the post, closes the connection without an answer    ok   nothing special
"""

import argparse
import base64
import hashlib
import hmac
import json
import sys
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

OK = 0
NO_TOKEN = 300001
SECURITY = 310000
TOO_FAST = 130101
TOO_LARGE = 460101
WRONG_TYPE = 43004
NOT_JSON = 40035
WRONG_MSGTYPE = 400105
MISSING = 400403
Verdict = tuple[int, str]


class Rules:
    """The robot's settings and what it remembers: one window of posts for each token."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.secret = Path(options.secret_file).read_text(encoding="utf-8").strip() if options.secret_file else ""
        self.script: deque[str] = deque(json.loads(options.script))
        self.posts: list[dict[str, object]] = []
        self.lock = threading.Lock()
        self._windows: dict[str, deque[float]] = {}
        self._blocked_until: dict[str, float] = {}

    def now(self) -> float:
        """The stand-in's clock, in seconds: the host's and the offset that a test sets."""
        return time.time() + float(self.options.clock_offset)

    def rate(self, token: str) -> Verdict:
        """20 posts in the window; the next one, and every post for a block after it, is refused."""
        now = time.monotonic()
        if now < self._blocked_until.get(token, 0.0):
            return TOO_FAST, "send too fast (blocked)"
        window = self._windows.setdefault(token, deque())
        while window and now - window[0] >= self.options.window:
            window.popleft()
        if len(window) >= self.options.limit:
            self._blocked_until[token] = now + self.options.block
            window.clear()
            return TOO_FAST, "send too fast, exceed 20 times per minute"
        window.append(now)
        return OK, "ok"

    def signature(self, query: dict[str, list[str]]) -> Verdict:
        """The signature over the decoded query, and its age."""
        if not self.secret:
            return OK, "ok"
        timestamp, sign = query.get("timestamp", [""])[0], query.get("sign", [""])[0]
        message = f"{timestamp}\n{self.secret}".encode()
        expected = base64.b64encode(hmac.new(self.secret.encode(), message, hashlib.sha256).digest()).decode()
        if not hmac.compare_digest(sign.encode(), expected.encode()):
            return SECURITY, "sign not match"
        if not timestamp.isdigit() or abs(self.now() - int(timestamp) / 1000) > self.options.skew:
            return SECURITY, "invalid timestamp"
        return OK, "ok"

    def body(self, raw: bytes, content_type: str) -> Verdict:
        """Type, size, shape, keyword and mentions."""
        kind, _, parameters = content_type.lower().partition(";")
        if kind.strip() != "application/json" or (parameters and "utf-8" not in parameters):
            return WRONG_TYPE, "Content-Type must be application/json; charset=utf-8"
        if len(raw) > self.options.max_bytes:
            return TOO_LARGE, f"the message is larger than {self.options.max_bytes} bytes"
        try:
            parsed = json.loads(raw.decode("utf-8"))
        except ValueError:
            return NOT_JSON, "the body is no JSON in UTF-8"
        return self._markdown(parsed) if isinstance(parsed, dict) else (NOT_JSON, "the body is no object")

    def _markdown(self, parsed: dict[str, object]) -> Verdict:
        if parsed.get("msgtype") != "markdown":
            return WRONG_MSGTYPE, "msgtype is not markdown"
        title, text = _words(parsed)
        if not title.strip() or not text.strip():
            return MISSING, "title and text are both needed"
        if self.options.keyword and self.options.keyword not in title + text:
            return SECURITY, "keywords not in content"
        missing = [name for name in _mentions(parsed) if f"@{name}" not in text]
        return (MISSING, f"not in the text: {', '.join(missing)}") if missing else (OK, "ok")


class RobotRequests(BaseHTTPRequestHandler):
    """POST /robot/send and /script; GET /posts and /healthy."""

    protocol_version = "HTTP/1.1"
    rules: Rules

    def do_POST(self) -> None:
        parts = urlsplit(self.path)
        raw = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if parts.path == "/script":
            self.rules.script.extend(json.loads(raw))
            self._answer(200, b"{}", "application/json")
        elif parts.path == "/robot/send":
            self._robot(parse_qs(parts.query, keep_blank_values=True), raw)
        else:
            self._answer(404, b"no such path; robots are at /robot/send", "text/plain")

    def do_GET(self) -> None:
        if self.path == "/healthy":
            self._answer(200, b"ok", "text/plain")
            return
        if self.path != "/posts":
            self._answer(404, b"", "text/plain")
            return
        with self.rules.lock:
            body = json.dumps(self.rules.posts, ensure_ascii=False).encode()
        self._answer(200, body, "application/json")

    def _robot(self, query: dict[str, list[str]], raw: bytes) -> None:
        with self.rules.lock:
            act = self.rules.script.popleft() if self.rules.script else "ok"
            name, _, argument = act.partition(":")
            code, words = self._verdict(query, raw)
            taken = code == OK and name in {"ok", "hang", "close"}
            if code == OK and name == "errcode":
                number, _, errmsg = argument.partition(":")
                code, words = int(number), errmsg or "scripted"
            self._keep(raw, code, words, taken, act)
        if name in {"http", "html"}:
            text = b"<html><body>Bad Gateway</body></html>" if name == "html" else b"scripted"
            self._answer(int(argument), text, "text/html" if name == "html" else "text/plain")
            return
        if name == "close":
            self.close_connection = True
            return
        if name == "hang":
            time.sleep(float(argument))
        answer = json.dumps({"errcode": code, "errmsg": words}, ensure_ascii=False)
        self._answer(200, answer.encode(), "application/json")

    def _verdict(self, query: dict[str, list[str]], raw: bytes) -> Verdict:
        token = query.get("access_token", [""])[0]
        if not token or (self.rules.options.token_file and token != _read(self.rules.options.token_file)):
            return NO_TOKEN, "token is not exist"
        checks = (
            self.rules.rate(token),
            self.rules.signature(query),
            self.rules.body(raw, self.headers.get("Content-Type", "")),
        )
        return next((verdict for verdict in checks if verdict[0] != OK), (OK, "ok"))

    def _keep(self, raw: bytes, code: int, words: str, taken: bool, act: str) -> None:
        """One line of evidence. `taken`: a person would see the message, whatever the sender is told."""
        parsed = _parsed(raw)
        title, text = _words(parsed)
        post: dict[str, object] = {
            "at": time.time(),
            "taken": taken,
            "errcode": code,
            "errmsg": words,
            "script": act,
            "bytes": len(raw),
            "title": title,
            "text": text,
            "mentions": _mentions(parsed),
        }
        self.rules.posts.append(post)
        if self.rules.options.log:
            with Path(self.rules.options.log).open("a", encoding="utf-8") as log:
                log.write(json.dumps(post, ensure_ascii=False) + "\n")
        if self.rules.options.pretty:
            mark = "" if taken else f"  [{code} {words}]"
            body = "\n".join(f"  │ {line}" for line in text.splitlines() if line.strip())
            _say(f"\n  ┌ DingTalk · {title}{mark}\n{body}\n  └")

    def _answer(self, status: int, body: bytes, content_type: str) -> None:
        self.send_response_only(status)
        self.send_header("Date", self.date_time_string(int(self.rules.now())))
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: object) -> None:
        """Nothing: the request line holds the token."""


def _parsed(raw: bytes) -> dict[str, object]:
    try:
        parsed = json.loads(raw.decode("utf-8", "replace"))
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _words(parsed: dict[str, object]) -> tuple[str, str]:
    markdown = parsed.get("markdown")
    if not isinstance(markdown, dict):
        return "", ""
    return str(markdown.get("title") or ""), str(markdown.get("text") or "")


def _mentions(parsed: dict[str, object]) -> list[str]:
    at = parsed.get("at")
    if not isinstance(at, dict):
        return []
    return [str(name) for key in ("atMobiles", "atUserIds") for name in at.get(key) or []]


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8").strip()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def options_of(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="dingtalk_stand_in", description="A strict DingTalk robot on loopback.")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--log", default="", help="append one JSON line for each post")
    parser.add_argument("--secret-file", default="", help="verify signatures with the secret in this file")
    parser.add_argument("--token-file", default="", help="take only the access token in this file; else any")
    parser.add_argument("--keyword", default="", help="refuse messages without it")
    parser.add_argument("--limit", type=int, default=20, help="posts in a window")
    parser.add_argument("--window", type=float, default=60.0, help="seconds")
    parser.add_argument("--block", type=float, default=600.0, help="seconds of refusal after the limit")
    parser.add_argument("--skew", type=float, default=3600.0, help="seconds that a timestamp may be off")
    parser.add_argument("--clock-offset", type=float, default=0.0, help="seconds that this robot's clock is ahead")
    parser.add_argument("--max-bytes", type=int, default=20_000)
    parser.add_argument("--script", default="[]", help="JSON list of scripted answers, see the module's text")
    parser.add_argument("--pretty", action="store_true", help="print each message as a person would read it")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Serves until it is killed; the first line of its output is the port."""
    rules = Rules(options_of(argv))
    requests = type("Requests", (RobotRequests,), {"rules": rules})
    server = ThreadingHTTPServer(("127.0.0.1", rules.options.port), requests)
    server.daemon_threads = True
    _say(str(server.server_address[1]))
    server.serve_forever()


if __name__ == "__main__":
    main()
