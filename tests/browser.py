"""A browser for the tests: headless Chromium, driven through a pipe, with what it complained about and asked for."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_PATIENCE = 60.0  # seconds for one answer; the machine may be busy
_ARGUMENTS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-extensions", "--disable-component-update", "--mute-audio"),
    *("--hide-scrollbars", "--remote-debugging-pipe", "--js-flags=--random-seed=1"),
)


def program() -> str | None:
    """Find a browser: `$CHROMIUM`, or one of the usual names; None where there is none."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


needed = pytest.mark.skipif(program() is None, reason=f"no browser: none of {', '.join(NAMES)}, and no $CHROMIUM")


class Browser:
    """A running browser with one page.

    It speaks the DevTools protocol over a pipe: JSON, each message ended by a zero byte.

    Attributes:
        complaints: what the page's console said, and errors that nobody caught.
        requests: what it asked for.
    """

    def __init__(self, profile: Path) -> None:
        their_in, self._out = os.pipe()
        self._in, their_out = os.pipe()

        def lay() -> None:
            os.dup2(their_in, 3)
            os.dup2(their_out, 4)

        command = [str(program()), *_ARGUMENTS, f"--user-data-dir={profile}", "about:blank"]
        with _clear_of_three_and_four(their_in, their_out) as (their_in, their_out):
            self._process = subprocess.Popen(
                command, preexec_fn=lay, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        self._rest = b""
        self._number = 0
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = next(t for t in self._tell("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = {"targetId": target["targetId"], "flatten": True}
        self._session = self._tell("Target.attachToTarget", session=None, **attached)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._tell(f"{domain}.enable")

    _session: str | None = None

    def _tell(self, method: str, session: str | None = "", **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        used = self._session if session == "" else session
        if used:
            message["sessionId"] = used
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._heard(answer)

    def _next(self, patience: float = _PATIENCE) -> dict[str, Any]:
        until = time.monotonic() + patience
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._in], [], [], max(until - time.monotonic(), 0))
            if not ready:
                raise TimeoutError(f"the browser said nothing for {patience:.0f} s")
            block = os.read(self._in, 1 << 20)
            if not block:
                raise RuntimeError("the browser has gone")
            self._rest += block
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)  # type: ignore[no-any-return]

    def _heard(self, event: dict[str, Any]) -> None:
        about = event.get("params", {})
        if event.get("method") == "Runtime.consoleAPICalled":
            self.complaints.append(" ".join(str(a.get("value", a.get("description"))) for a in about["args"]))
        elif event.get("method") == "Runtime.exceptionThrown":
            details = about["exceptionDetails"]
            self.complaints.append(str(details.get("exception", {}).get("description", details["text"])))
        elif event.get("method") == "Log.entryAdded":
            self.complaints.append(about["entry"]["text"])
        elif event.get("method") == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif event.get("method") == "Page.javascriptDialogOpening":
            self.complaints.append(f"a dialog: {about['message']}")

    def open(self, path: Path, before: str = "") -> float:
        """Open a page of ours and wait until it is ready; return the seconds it took.

        Args:
            path: the file.
            before: a program that runs first.
        """
        self.complaints.clear()
        self.requests.clear()
        held = self._tell("Page.addScriptToEvaluateOnNewDocument", source=before) if before else None
        began = time.monotonic()
        self._tell("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.body?.dataset.ready === 'yes'")
        took = time.monotonic() - began
        if held:
            self._tell("Page.removeScriptToEvaluateOnNewDocument", identifier=held["identifier"])
        return took

    def run(self, code: str) -> Any:
        """Run an expression in the page and return its value, once it is there."""
        told = {"expression": code, "returnByValue": True, "awaitPromise": True}
        answer = self._tell("Runtime.evaluate", **told)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", code))
        return answer["result"].get("value")

    def wait(self, code: str, patience: float = _PATIENCE) -> None:
        """Wait until an expression holds."""
        until = time.monotonic() + patience
        while not self.run(f"Boolean({code})"):
            if time.monotonic() > until:
                raise TimeoutError(f"in {patience:.0f} s this didn't come to hold: {code}; {self.complaints}")
            self.run("new Promise((done) => setTimeout(done, 20))")

    def text(self, selector: str) -> str:
        """The text of an element, as it is seen."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def press(self, *keys: str, shift: bool = False) -> None:
        """Press keys, one after the other."""
        for key in keys:
            for kind in ("keyDown", "keyUp"):
                told = {"key": key, "code": key, "modifiers": 8 if shift else 0}
                if kind == "keyDown" and len(key) == 1:
                    told["text"] = key
                self._tell("Input.dispatchKeyEvent", type=kind, **told, **_codes(key))

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Move the mouse, press it or turn its wheel."""
        self._tell("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, begin: tuple[float, float], end: tuple[float, float]) -> None:
        """Draw the pressed mouse from one point to another."""
        self.mouse("mousePressed", *begin, button="left", clickCount=1)
        self.mouse("mouseMoved", (begin[0] + end[0]) / 2, end[1], button="left", buttons=1)
        self.mouse("mouseMoved", *end, button="left", buttons=1)
        self.mouse("mouseReleased", *end, button="left", clickCount=1)

    def box(self, selector: str) -> tuple[float, float, float, float]:
        """Where an element lies in sight: x, y, width, height."""
        code = (
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({ block: 'center' });"
            " const r = e.getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; })()"
        )
        x, y, width, height = self.run(code)
        return x, y, width, height

    def size(self, width: int, height: int = 900) -> None:
        """Set the size of what is in sight."""
        self._tell(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )

    def prefer(self, scheme: str) -> None:
        """Prefer "light" or "dark"."""
        self._tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def picture(self, path: Path, whole: bool = True) -> None:
        """Take a picture of the page."""
        told = self._tell("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(told["data"]))

    def close(self) -> None:
        """End it."""
        with suppress(OSError, RuntimeError, TimeoutError):
            self._tell("Browser.close", session=None)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        os.close(self._out)


@contextmanager
def _clear_of_three_and_four(*pipes: int) -> Iterator[list[int]]:
    """Move the browser's ends of the pipes to numbers that nothing is laid over; they are closed here afterwards."""
    moved = [_high(pipe) for pipe in pipes]
    try:
        yield moved
    finally:
        for pipe in moved:
            os.close(pipe)


def _high(pipe: int) -> int:
    import fcntl

    high = fcntl.fcntl(pipe, fcntl.F_DUPFD, 20)
    os.close(pipe)
    return high


_CODES = {"ArrowLeft": 37, "ArrowRight": 39, "PageUp": 33, "PageDown": 34, "Home": 36, "End": 35, "Enter": 13, "Tab": 9}


def _codes(key: str) -> dict[str, int]:
    code = _CODES.get(key, ord(key.upper()) if len(key) == 1 else 0)
    return {"windowsVirtualKeyCode": code, "nativeVirtualKeyCode": code}


@contextmanager
def opened() -> Iterator[Browser]:
    """A browser with a profile of its own, which goes with it."""
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        browser = Browser(Path(profile))
        try:
            yield browser
        finally:
            browser.close()
