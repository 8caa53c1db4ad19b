"""Generates toolgate/_gen from the contract before a wheel or an sdist is built in a checkout."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SDK = Path(__file__).parent
PROTO = SDK.parent.parent / "proto"
CONTRACT = "opencode/tool/v1/"
PACKAGE = "toolgate/_gen/"
RULES = "buf/validate/validate.proto"


class Stubs(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # An sdist has no contract, but the stubs that were made of it.
        if (PROTO / CONTRACT).exists():
            generate_stubs()


def generate_stubs() -> None:
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory)
        described = made / "contract.binpb"
        names = sorted(str(path.relative_to(PROTO)) for path in PROTO.glob(f"{CONTRACT}*.proto"))
        protoc(f"-I{PROTO}", f"--descriptor_set_out={described}", "--include_imports", "--include_source_info", *names)
        contract = FileDescriptorSet.FromString(described.read_bytes())
        files = FileDescriptorSet(file=[prepared(file) for file in contract.file if file.name != RULES])
        described.write_bytes(files.SerializeToString())

        ours = [file for file in files.file if file.name.startswith(PACKAGE)]
        generate(described, ["python", "mypy"], ours, made)
        generate(described, ["grpc_python", "mypy_grpc"], [file for file in ours if file.service], made)
        (made / PACKAGE / "__init__.py").touch()
        shutil.rmtree(SDK / PACKAGE, ignore_errors=True)
        shutil.copytree(made / PACKAGE, SDK / PACKAGE)


def prepared(file: FileDescriptorProto) -> FileDescriptorProto:
    """Moves a file of the contract into our package, and drops its rules, which only the service evaluates."""
    if not file.name.startswith(CONTRACT):
        return file
    file.DiscardUnknownFields()
    dependencies = [moved(name) for name in file.dependency if name != RULES]
    del file.dependency[:]
    file.dependency.extend(dependencies)
    file.name = moved(file.name)
    return file


def moved(name: str) -> str:
    return PACKAGE + name.removeprefix(CONTRACT) if name.startswith(CONTRACT) else name


def generate(described: Path, plugins: list[str], files: list[FileDescriptorProto], target: Path) -> None:
    outputs = [f"--{plugin}_out={target}" for plugin in plugins]
    protoc(f"--descriptor_set_in={described}", *outputs, *(file.name for file in files))


def protoc(*arguments: str) -> None:
    # pip has the programs of the build's packages in PATH, hatchling alone beside its own.
    places = os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent)])
    found = [f"--plugin={shutil.which(name, path=places)}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")]
    command = [sys.executable, "-m", "grpc_tools.protoc", *found, *arguments]
    run = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if run.returncode != 0:
        raise RuntimeError(run.stderr)
