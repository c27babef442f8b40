"""The two tokens: one for Alertmanager's webhook, one for agents and the command line."""

import hmac
import os
import secrets
from pathlib import Path

from tunewarden.errors import SettingsError

TOKEN_BYTES = 32
WEBHOOK_PATH = "/api/v1/alertmanager"
# Debian's prometheus-alertmanager runs as user prometheus and reads /etc/prometheus.
ALERTMANAGER_USER = "prometheus"
ALERTMANAGER_TOKEN = "/etc/prometheus/tunewarden.token"  # noqa: S105 - a path


def ensure_token(path: Path) -> tuple[str, bool]:
    """The token in `path`, made (0600) when there is no such file; and whether it was made just now.

    Raises SettingsError when it can't be made or read: the service never runs open.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # A file beside it, then a link: nobody ever reads half a token, and the first of two starters wins.
        fresh = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if path.is_file():
            return read_token(path), False
        raise SettingsError(f"the token file {path} can't be made: {error.strerror}") from None
    try:
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
            file.flush()
            os.fsync(fd)
        os.link(fresh, path)
    except FileExistsError:
        return read_token(path), False
    except OSError as error:
        raise SettingsError(f"the token file {path} can't be made: {error.strerror}") from None
    finally:
        fresh.unlink(missing_ok=True)
    return read_token(path), True


def read_token(path: Path) -> str:
    """The token, without the newline.

    Raises SettingsError, which never quotes it, when it is missing, empty or more than one word.
    """
    try:
        token = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        raise SettingsError(
            f"the token file {path} isn't there; `tunewarden serve` makes it at its first start"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the token file {path} can't be read: {type(error).__name__}") from None
    if not token or len(token.split()) != 1:
        raise SettingsError(f"the token file {path} must hold one word; delete it and the next start makes a new one")
    return token


def same(given: bytes, expected: bytes) -> bool:
    """Equal, in a time that does not tell how much of it is."""
    return hmac.compare_digest(given, expected)


def alertmanager_lines(url: str, token_file: Path) -> str:
    """What belongs into alertmanager.yml, and the line that copies the token where Alertmanager can read it.

    `credentials_file` is known since Alertmanager 0.22.
    """
    return f"""\
# Let Alertmanager (user {ALERTMANAGER_USER} on Debian and Ubuntu) read the token:
#   sudo install -o {ALERTMANAGER_USER} -m 600 {token_file} {ALERTMANAGER_TOKEN}
receivers:
  - name: tunewarden
    webhook_configs:
      - url: {url}{WEBHOOK_PATH}
        send_resolved: true
        http_config:
          authorization:
            type: Bearer
            credentials_file: {ALERTMANAGER_TOKEN}
"""
