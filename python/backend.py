"""Builds the wheel (PEP 517) without other packages: the modules of python/stet, and
libstet.so.0, which CMake builds or STET_LIBRARY names."""
import base64
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _version():
    with open(os.path.join(ROOT, "include/stet/api.h")) as file:
        parts = dict(re.findall(r"#define STET_VERSION_(MAJOR|MINOR|PATCH) (\d+)", file.read()))
    return "%(MAJOR)s.%(MINOR)s.%(PATCH)s" % parts


def _library(work):
    given = os.environ.get("STET_LIBRARY")
    if given:
        return given
    subprocess.run(["cmake", "-S", ROOT, "-B", work, "-DCMAKE_BUILD_TYPE=Release", "-DSTET_TESTS=OFF"], check=True)
    subprocess.run(["cmake", "--build", work, "--target", "stet_shared", "--parallel"], check=True)
    return os.path.join(work, "libstet.so.0")


def _metadata():
    return ("Metadata-Version: 2.1\nName: stet\nVersion: %s\n"
            "Summary: Transformer state that can be saved, moved and proved, bit for bit\n"
            "Requires-Python: >=3.9\nRequires-Dist: numpy\n" % _version())


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    info = "stet-%s.dist-info" % _version()
    name = "stet-%s-py3-none-%s.whl" % (_version(), platform)
    with tempfile.TemporaryDirectory() as work:
        files = {
            info + "/METADATA": _metadata().encode(),
            info + "/WHEEL": ("Wheel-Version: 1.0\nGenerator: stet\nRoot-Is-Purelib: false\nTag: py3-none-%s\n" %
                              platform).encode()
        }
        for module in sorted(os.listdir(os.path.join(ROOT, "python/stet"))):
            if module.endswith((".py", ".typed")):
                with open(os.path.join(ROOT, "python/stet", module), "rb") as file:
                    files["stet/" + module] = file.read()
        with open(_library(work), "rb") as file:
            files["stet/libstet.so.0"] = file.read()
    record = "".join("%s,sha256=%s,%d\n" %
                     (path, base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode(), len(data))
                     for path, data in files.items())
    files[info + "/RECORD"] = (record + info + "/RECORD,,\n").encode()
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, data in files.items():
            wheel.writestr(path, data)
    return name


def build_sdist(sdist_directory, config_settings=None):
    raise SystemExit("expected a wheel: there are no source distributions of stet but its repository")


if __name__ == "__main__":
    print(build_wheel(sys.argv[1] if len(sys.argv) > 1 else "."))
