import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { ToolErrorReason as Reason, type ToolPart, ToolPartSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import { createMetrics } from "../../src/telemetry/metrics.ts";

const start = 1_800_000_000_000;

function completed(tool: string, ms: number, bytes: number): ToolPart {
  const value = { input: { text: "ä" }, metadata: { originalSize: bytes }, time: { start, end: start + ms } };
  return create(ToolPartSchema, { tool, state: { case: "completed", value } });
}

function failed(tool: string, reason: Reason, ms = 0): ToolPart {
  return create(ToolPartSchema, {
    tool,
    state: { case: "error", value: { reason, time: { start, end: start + ms } } },
  });
}

test("the metrics are in the text format of Prometheus", () => {
  const metrics = createMetrics();
  const known = (part: ToolPart) => metrics.ended({ part, isKnownTool: true });
  known(completed("read", 30, 100));
  known(completed("bash", 2_000, 7));
  known(failed("bash", Reason.TIMEOUT, 4_000));
  known(failed("bash", Reason.REJECTED));
  metrics.waited({ part: completed("bash", 0, 0), isKnownTool: true, ms: 20_000 });
  metrics.waited({ part: failed('y"}\n1', Reason.REJECTED), isKnownTool: false, ms: 1 });
  metrics.ended({ part: failed('x"}\n1', Reason.UNKNOWN_TOOL), isKnownTool: false });
  const text = metrics.text();
  for (const lines of [
    "# HELP toolgate_calls_total Calls that ended, without those whose outcome was not reported.\n# TYPE toolgate_calls_total counter\n",
    'toolgate_calls_total{tool="(unknown)"} 1\ntoolgate_calls_total{tool="bash"} 3\ntoolgate_calls_total{tool="read"} 1\n',
    'toolgate_call_errors_total{tool="bash",reason="timeout"} 1\ntoolgate_call_errors_total{tool="bash",reason="rejected"} 1\n',
    "# TYPE toolgate_call_duration_seconds histogram\n",
    'toolgate_call_duration_seconds_bucket{tool="bash",le="1"} 0\ntoolgate_call_duration_seconds_bucket{tool="bash",le="2.5"} 1\n',
    'toolgate_call_duration_seconds_bucket{tool="bash",le="+Inf"} 2\ntoolgate_call_duration_seconds_sum{tool="bash"} 6\ntoolgate_call_duration_seconds_count{tool="bash"} 2\n',
    'toolgate_call_wait_seconds_bucket{tool="bash",le="15"} 0\ntoolgate_call_wait_seconds_bucket{tool="bash",le="60"} 1\n',
    'toolgate_call_input_bytes_total{tool="bash"} 17\n',
    'toolgate_call_output_bytes_total{tool="bash"} 7\ntoolgate_call_output_bytes_total{tool="read"} 100\n',
  ]) {
    expect(text).toContain(lines);
  }
  // Every line is a comment or a sample, so no text of a caller is in any.
  const sample = /^[a-z_]+\{tool="[^"\n]*"(?:,(?:reason|le)="[^"\n]*")?\} [0-9.]+$/;
  expect(
    text
      .trimEnd()
      .split("\n")
      .filter((line) => !line.startsWith("# ") && !sample.test(line)),
  ).toEqual([]);
});

test("the average covers calls whose body was entered, the errors cover all", () => {
  const metrics = createMetrics();
  metrics.ended({ part: completed("bash", 100, 0), isKnownTool: true });
  metrics.ended({ part: failed("bash", Reason.TIMEOUT, 300), isKnownTool: true });
  metrics.ended({ part: failed("bash", Reason.DENIED), isKnownTool: true });
  expect(metrics.stats()).toEqual([{ tool: "bash", count: 3n, avgDuration: 200, errors: 2n, timeouts: 1n }]);
});
