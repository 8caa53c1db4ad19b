import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { type WorkerReport, WorkerReportSchema } from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { createAdoptingReports, holdReport } from "../../../src/bodies/workers/waiting-reports.ts";

type Report = NonNullable<MessageInitShape<typeof WorkerReportSchema>["report"]>;

const reportOf = (report: Report): WorkerReport => create(WorkerReportSchema, { assignment: "a/ses/c", report });
const piece = new Uint8Array(262_144);
const bytes = (blob: number) => reportOf({ case: "output", value: { blob, offset: 0n, data: piece } });
const progress = () => reportOf({ case: "progress", value: { metadata: { text: "x".repeat(262_144) } } });

/** Holds as many reports, and returns how many are kept, and why none is. */
function hold(count: number, report: () => WorkerReport) {
  const held = createAdoptingReports();
  for (let index = 0; index < count; index += 1) holdReport(held, report());
  return { kept: held.reports.length, problem: held.problem };
}

test("reports wait for the adoption of their call up to the limits of a body that runs", () => {
  expect(hold(2, () => bytes(0))).toEqual({ kept: 2, problem: undefined });
  expect(hold(128, () => bytes(1))).toEqual({ kept: 128, problem: undefined });
  expect(hold(15, progress)).toEqual({ kept: 15, problem: undefined });
});

test("more of them are dropped, and fail the call by the limit that they exceed", () => {
  expect(hold(3, () => bytes(0))).toEqual({
    kept: 0,
    problem: "The worker sent more than 262144 bytes of output without a receipt.",
  });
  expect(hold(129, () => bytes(7))).toEqual({
    kept: 0,
    problem: "The worker sent more than 33554432 bytes of attachments.",
  });
  expect(hold(1_000, progress)).toEqual({
    kept: 0,
    problem: "The worker sent more than 4194304 bytes of reports while its call was taken over.",
  });
});
