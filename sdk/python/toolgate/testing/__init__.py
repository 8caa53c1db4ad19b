"""For tests of tools: `run` without a service, and `gate` with a real one."""

from toolgate.testing.gate import Gate, Policy, gate
from toolgate.testing.run import Answer, RefusedError, ToolRun, run

__all__ = ["Answer", "Gate", "Policy", "RefusedError", "ToolRun", "gate", "run"]
