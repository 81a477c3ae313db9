"""The promtool of this machine; else one of Debian's package, unpacked without root; else one that
Go builds.

`python -m tests.promtool` fetches it.
"""

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

OUT = Path(__file__).parents[1] / "out"
VERSION = "v0.300.0"
PACKAGES = "prometheus", "promtool"  # newer systems have it apart
ADVICE = (
    "no promtool: install it (Debian: apt-get install prometheus), or apt-get or Go, by which the tests take one "
    "without root"
)


def found() -> Path:
    """Its path. FileNotFoundError, with what to install, if there is none and none can be fetched."""
    if installed := shutil.which("promtool"):
        return Path(installed)
    fetched = OUT / "promtool"
    if not fetched.exists():
        OUT.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=OUT) as folder:
            for fetch in of_debian, of_go:
                made = fetch(Path(folder))
                if made is not None and made.exists():
                    made.replace(fetched)
                    break
    if not fetched.exists():
        raise FileNotFoundError(ADVICE)
    return fetched


def of_debian(folder: Path) -> Path | None:
    """With lists of packages of its own: those of the machine may be missing, and are root's."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return None
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    own = f"Dir::State::lists={folder}/lists", f"Dir::Cache={folder}/cache", "APT::Sandbox::User="
    options = [word for option in own for word in ("-o", option)]
    output(folder, "apt-get", *options, "update")
    for package in PACKAGES:
        output(folder, "apt-get", *options, "download", package)
    for file in folder.glob("*.deb"):
        output(folder, "dpkg-deb", "-x", file.name, ".")
    return folder / "usr" / "bin" / "promtool"


def of_go(folder: Path) -> Path | None:
    """Some minutes. `go install` refuses a module that excludes others, so it is built in its own
    folder."""
    if not shutil.which("go"):
        return None
    told = output(
        folder, "go", "mod", "download", "-json", f"github.com/prometheus/prometheus@{VERSION}"
    )
    if told:
        output(
            folder,
            "go",
            "build",
            "-C",
            json.loads(told)["Dir"],
            "-o",
            str(folder / "promtool"),
            "./cmd/promtool",
        )
    return folder / "promtool"


def output(folder: Path, *command: str) -> bytes:
    """What a command prints; nothing if it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=1800, check=False)
    return b"" if done.returncode else done.stdout


if __name__ == "__main__":
    print(found())
