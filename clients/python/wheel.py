#!/usr/bin/env python3
"""Packs the Python module and a posse program into a wheel. Needs no network, and nothing beside Python.

    wheel.py PROGRAM FOLDER [JAR]   writes FOLDER/posse-VERSION-py3-none-PLATFORM.whl, and prints its path

JAR is the Spark adapter's. With it the wheel has posse-spark-submit.

The program is static, so the wheel installs on every Linux of its machine: glibc and musl. The same files and
SOURCE_DATE_EPOCH give the same bytes.
"""

import base64
import hashlib
import os
import re
import struct
import sys
import time
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# e_machine of an ELF file -> the name of the machine in a wheel's tag.
MACHINES = {0x3E: "x86_64", 0xB7: "aarch64"}
# PEP 600 and PEP 656: the oldest glibc and musl that pip knows.
PLATFORMS = "manylinux_2_17_{0}.manylinux2014_{0}.musllinux_1_1_{0}"


def machine(program: bytes) -> str:
    if program[:4] != b"\x7fELF":
        sys.exit("wheel: the program is no Linux program (ELF)")
    number = struct.unpack_from("<H", program, 18)[0]
    return MACHINES.get(number) or sys.exit(f"wheel: machine {number:#x} has no name in a wheel's tag")


def version() -> str:
    cargo = (HERE.parents[1] / "Cargo.toml").read_text()
    return re.search(r'^version = "(.*)"$', cargo, re.MULTILINE)[1]


def metadata(name: str) -> str:
    project = (HERE / "pyproject.toml").read_text()

    def value(key: str) -> str:
        return re.search(rf'^{key} = \[?"(.*)"\]?$', project, re.MULTILINE)[1]

    return (
        f"Metadata-Version: 2.1\nName: posse\nVersion: {name}\nSummary: {value('description')}\n"
        f"License: {value('license')}\nRequires-Python: {value('requires-python')}\n"
        f"Provides-Extra: spark\nRequires-Dist: {value('spark')}; extra == 'spark'\n"
        "Description-Content-Type: text/markdown\n\n" + (HERE / "README.md").read_text()
    )


def main() -> None:
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    if not Path(sys.argv[2]).is_dir():
        sys.exit(f"wheel: there is no folder {sys.argv[2]}: make it first")
    program, name = Path(sys.argv[1]).read_bytes(), version()
    platforms = PLATFORMS.format(machine(program))
    tags = "".join(f"Tag: py3-none-{platform}\n" for platform in platforms.split("."))
    info = f"posse-{name}.dist-info"
    files = [(f"posse/{path.name}", path.read_bytes(), 0o644) for path in sorted((HERE / "posse").glob("*.py"))]
    # Snakemake finds a plugin by the name of its package.
    plugin = "snakemake_executor_plugin_posse/__init__.py"
    files += [
        (plugin, (HERE / plugin).read_bytes(), 0o644),
        ("posse/py.typed", b"", 0o644),
        (f"posse-{name}.data/scripts/posse", program, 0o755),
        (f"{info}/METADATA", metadata(name).encode(), 0o644),
        (f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: posse\nRoot-Is-Purelib: false\n{tags}".encode(), 0o644),
    ]
    if len(sys.argv) == 4:
        adapter, share = HERE.parents[1] / "adapters/spark", f"posse-{name}.data/data/share/posse/spark"
        files += [
            (f"posse-{name}.data/scripts/posse-spark-submit", (adapter / "posse-spark-submit").read_bytes(), 0o755),
            (f"{share}/posse-spark.jar", Path(sys.argv[3]).read_bytes(), 0o644),
            *((f"{share}/{part}", (adapter / part).read_bytes(), 0o644) for part in ("executor.sh", "executor.yaml")),
        ]
    record = ""
    for path, content, _ in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    files.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode(), 0o644))
    # A zip file cannot tell times before 1980.
    date = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), 315_532_800))[:6]
    wheel = Path(sys.argv[2]) / f"posse-{name}-py3-none-{platforms}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content, mode in files:
            entry = zipfile.ZipInfo(path, date)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    print(wheel)


main()
