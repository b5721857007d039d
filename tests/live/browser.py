"""A headless Chromium, driven over its debugging pipe (Chrome DevTools Protocol): nothing else must be installed."""

import base64
import fcntl
import itertools
import json
import os
import select
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

TIMEOUT_S = 40.0
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--mute-audio",
)


class Page:
    """One tab, from `with` to its end."""

    def __init__(self, browser: str, width: int = 1280, height: int = 900) -> None:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        there, self._write = _pipe()
        self._read, here = _pipe()
        # A browser reads from file descriptor 3 and writes to 4.
        command = [
            *("bash", "-c", f'exec "$@" 3<&{there} 4>&{here}', "bash", browser, *_FLAGS),
            *("--remote-debugging-pipe", f"--user-data-dir={self._folder.name}", f"--window-size={width},{height}"),
        ]
        self._process = subprocess.Popen(
            command, pass_fds=(there, here), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(there)
        os.close(here)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._loaded = False
        self._session: str | None = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call("Page.enable")
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._write)
        os.close(self._read)
        self._process.terminate()
        self._process.wait(TIMEOUT_S)
        self._folder.cleanup()

    def open(self, url: str) -> None:
        """Until it has been loaded."""
        self._loaded = False
        self._call("Page.navigate", url=url)
        while not self._loaded:
            self._receive()

    def prefer(self, scheme: str) -> None:
        """`dark` or `light`."""
        self._call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def value(self, expression: str) -> Any:
        """What an expression is in the page; a promise is waited for."""
        answer = self._call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_until(self, condition: str) -> None:
        """Until an expression is true in the page that is there then."""
        look = f"const look = () => ({condition}) ? done(true) : setTimeout(look, 50); look();"
        give_up = f"setTimeout(() => done(false), {TIMEOUT_S * 1e3});"
        assert self.value(f"new Promise((done) => {{ {look} {give_up} }})"), f"not true: {condition}"

    def picture(self, path: Path) -> None:
        """All of the page, as PNG."""
        size = self.value("({width: innerWidth, height: document.documentElement.scrollHeight})")
        clip = {"x": 0, "y": 0, **size, "scale": 1}
        answer = self._call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def _call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def _receive(self) -> Any:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], TIMEOUT_S + 10)
            assert ready, "the browser does not answer"
            chunk = os.read(self._read, 1 << 20)
            assert chunk, "the browser has ended"
            self._buffer += chunk
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer = json.loads(message)
        self._loaded |= answer.get("method") == "Page.loadEventFired"
        return answer


def _pipe() -> tuple[int, int]:
    """Both ends, out of the way of 3 and 4."""
    low = os.pipe()
    read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low)
    for end in low:
        os.close(end)
    return read, write
