"""What must not leave a machine in a file: secrets, and the names of people and machines.

Found by their form or by the name they stand under. A value that is masked is replaced as a whole, and what was masked
is listed, so that a reader of the file knows that it isn't what the run had. Nobody can promise that nothing is missed:
the list of what goes into the file is shown before it is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

MASK = "***"

_BY_FORM: dict[str, tuple[tuple[str, ...], str]] = {
    "a private key": (("PRIVATE KEY-----",), r"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "a key of AWS": (("AKIA", "ASIA"), r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "a token of Hugging Face": (("hf_",), r"\bhf_[A-Za-z0-9]{30,}\b"),
    "a token of GitHub": (
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        r"\b(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,})\b",
    ),
    "a token of GitLab": (("glpat-",), r"\bglpat-[A-Za-z0-9_-]{20,}"),
    "a token of Slack": (("xox",), r"\bxox[abprs]-[A-Za-z0-9-]{10,}"),
    "a key of an API": (("sk-",), r"\bsk-[A-Za-z0-9_-]{20,}"),
    "a key of Google": (("AIza",), r"\bAIza[A-Za-z0-9_-]{35}"),
    "a web token": (("eyJ",), r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
}
"""What it is -> what is in it (which is looked for first, since that is fast), and how it looks.

Each is so long that chance doesn't make it, in a file of weights neither.
"""
_IN_BYTES = [
    (what, [sign.encode() for sign in signs], re.compile(form.encode())) for what, (signs, form) in _BY_FORM.items()
]
_IN_TEXT = {what: re.compile(form) for what, (_, form) in _BY_FORM.items()}
_URL = re.compile(r"(?<![a-z0-9+.-])(?P<scheme>[a-z][a-z0-9+.-]*://)[^/\s@:]*:[^/\s@]+@", re.IGNORECASE)
_NAME = (
    r"(?:[a-z0-9]+[_-])?(?:[a-z0-9]+[_-])?(?:token|secret|password|passwd|passphrase|pwd|api[_-]?key|access[_-]?key|"
    r"private[_-]?key|secret[_-]?key|credentials?|cookie|authorization|bearer)"
)
_IS_NAME = re.compile(rf"(?:--?)?(?:{_NAME}|key)", re.IGNORECASE)
_GIVEN = re.compile(
    rf"(?P<name>(?<![a-z0-9])(?:{_NAME}['\"]?\s*[=:]|key=)\s*)"
    r"(?P<value>'[^']*'|\"[^\"]*\"|(?:(?:bearer|basic|token)\s+)?[^\s,;&'\"]+)",
    re.IGNORECASE,
)
_HOMES = re.compile(r"(?:/home/|/Users/|[A-Za-z]:\\Users\\)[^/\\\s'\":,]+")
_LONGEST = 512  # bytes of a form that may lie across two blocks

Tell = Callable[[str], None]


def masked(value: Any, at: str, tell: Tell, *, host: str = "") -> Any:
    """Return plain data with secrets masked and names of people and machines shortened.

    Args:
        value: plain data.
        at: where it stands, for the list.
        tell: takes a sentence for each secret that was masked.
        host: the name of the machine that it comes from; "" if that isn't known.
    """
    if isinstance(value, Mapping):
        return {_text(str(k), at, _quiet, host): _under(str(k), v, f"{at}.{k}", tell, host) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return list(_arguments(value, at, tell, host))
    return _text(value, at, tell, host) if isinstance(value, str) else value


def differs(value: Any, masked: Any) -> bool:
    """Say whether masking changed plain data; tuples have become lists anyway."""
    return json.dumps(value, sort_keys=True) != json.dumps(masked, sort_keys=True)


def secrets_in(value: Any, at: str) -> list[str]:
    """Say which secrets plain data holds, without changing it: "data.error (a token of GitHub)"."""
    found: list[str] = []
    masked(value, at, found.append)
    return found


def may_hold_secrets(line: bytes) -> bool:
    """Say whether a closer look at a line of a journal is worth it; most lines hold numbers."""
    return any(sign in line for sign in (b"=", b"://", b": ")) or bool(_formed(line))


def secrets_in_blocks(blocks: Iterable[bytes]) -> str:
    """Say what kind of secret is in bytes that come in blocks, by its form; "" if none is found."""
    before = b""
    for block in blocks:
        text = before + block
        found = _formed(text)
        if found:
            return found
        before = text[-_LONGEST:]
    return ""


def _formed(text: bytes) -> str:
    for what, signs, form in _IN_BYTES:
        if any(sign in text for sign in signs) and form.search(text):
            return what
    return ""


def _under(name: str, value: Any, at: str, tell: Tell, host: str) -> Any:
    if isinstance(value, str) and value and _IS_NAME.fullmatch(name):
        tell(f"{at} (named so)")
        return MASK
    return masked(value, at, tell, host=host)


def _arguments(values: Iterable[Any], at: str, tell: Tell, host: str) -> Iterator[Any]:
    """Mask a list; of a command line, also what follows an option that is named like a secret."""
    named = ""
    for i, value in enumerate(values):
        if named and isinstance(value, str) and not value.startswith("-"):
            tell(f"{at}[{i}] (what follows {named})")
            yield MASK
        else:
            yield masked(value, f"{at}[{i}]", tell, host=host)
        named = value if isinstance(value, str) and value.startswith("-") and _IS_NAME.fullmatch(value) else ""


def _text(text: str, at: str, tell: Tell, host: str) -> str:
    for what, form in _IN_TEXT.items():
        text, times = form.subn(MASK, text)
        if times:
            tell(f"{at} ({what})")
    text, times = _URL.subn(rf"\g<scheme>{MASK}@", text)
    if times:
        tell(f"{at} (a password in an address)")
    text, times = _GIVEN.subn(rf"\g<name>{MASK}", text)
    if times:
        tell(f"{at} (named so)")
    return _shortened(text, host)


def _shortened(text: str, host: str) -> str:
    home = str(Path.home())
    if len(home) > 1:
        text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
    text = _HOMES.sub("~", text)
    return re.sub(rf"(?<![\w.-]){re.escape(host)}(?![\w-])", called(host), text) if host else text


def called(host: str) -> str:
    """Return what a machine is called in the file: the same name for the same one, and not its own."""
    return f"host-{blake2b(host.encode(), digest_size=2).hexdigest()}"


def _quiet(sentence: str) -> None:
    """Take what isn't told."""
