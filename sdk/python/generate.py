"""Generates toolgate/_gen from the contract: python sdk/python/generate.py, with the packages of requirements.txt."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

SDK = Path(__file__).parent
PROTO = SDK.parent.parent / "proto"
CONTRACT = "opencode/tool/v1/"
PACKAGE = "toolgate/_gen/"
RULES = "buf/validate/validate.proto"


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        described = Path(directory) / "contract.binpb"
        names = sorted(str(path.relative_to(PROTO)) for path in PROTO.glob(f"{CONTRACT}*.proto"))
        protoc(f"-I{PROTO}", f"--descriptor_set_out={described}", "--include_imports", "--include_source_info", *names)
        contract = FileDescriptorSet.FromString(described.read_bytes())
        files = FileDescriptorSet(file=[prepared(file) for file in contract.file if file.name != RULES])
        described.write_bytes(files.SerializeToString())

        target = SDK / PACKAGE
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        (target / "__init__.py").touch()
        ours = [file for file in files.file if file.name.startswith(PACKAGE)]
        generate(described, ["python", "mypy"], ours)
        generate(described, ["grpc_python", "mypy_grpc"], [file for file in ours if file.service])


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


def generate(described: Path, plugins: list[str], files: list[FileDescriptorProto]) -> None:
    outputs = [f"--{plugin}_out={SDK}" for plugin in plugins]
    protoc(f"--descriptor_set_in={described}", *outputs, *(file.name for file in files))


def protoc(*arguments: str) -> None:
    plugins = Path(sys.executable).parent
    found = [f"--plugin={plugins / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")]
    command = [sys.executable, "-m", "grpc_tools.protoc", *found, *arguments]
    run = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if run.returncode != 0:
        sys.exit(run.stderr)


main()
