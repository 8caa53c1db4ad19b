import { toBinary } from "@bufbuild/protobuf";
import { type WorkerReport, WorkerReportSchema } from "../../../gen/opencode/tool/v1/worker_pb.ts";

/** Output of a body that may lack a receipt, in bytes. */
export const windowBytes = 262_144;
/** Bytes of all attachments of a body, which are in memory until its result. */
export const maxFileBytes = 32 * 1024 * 1024;
/** Bytes of progress, requests and the result that may wait: more than a worker sends again after a lost connection. */
const maxOtherBytes = 4 * 1024 * 1024;

/** Bytes of reports that are not handled yet. */
export interface WaitingBytes {
  output: number;
  files: number;
}

/** Reports that came while their call was being adopted. */
export interface AdoptingReports {
  reports: WorkerReport[];
  readonly waiting: WaitingBytes;
  otherBytes: number;
  /** The reason why the call fails once it is adopted; undefined while the reports are within the limits. */
  problem: string | undefined;
}

/** Creates it, empty. */
export function createAdoptingReports(): AdoptingReports {
  return { reports: [], waiting: { output: 0, files: 0 }, otherBytes: 0, problem: undefined };
}

/** Holds a report until its call runs here. One that exceeds a limit drops all, and fails the call. */
export function holdReport(held: AdoptingReports, report: WorkerReport): void {
  if (held.problem !== undefined) return;
  const { kind, bytes } = bytesOfReport(report);
  if (bytes > 0) held.waiting[kind] += bytes;
  else held.otherBytes += toBinary(WorkerReportSchema, report).length;
  held.problem = waitingProblem(held.waiting);
  if (held.otherBytes > maxOtherBytes)
    held.problem = `The worker sent more than ${maxOtherBytes} bytes of reports while its call was taken over.`;
  held.reports.push(report);
  if (held.problem !== undefined) held.reports = [];
}

/** Returns the bytes of output or of an attachment in a report. */
export function bytesOfReport({ report }: Pick<WorkerReport, "report">): { kind: keyof WaitingBytes; bytes: number } {
  if (report.case !== "output") return { kind: "output", bytes: 0 };
  return { kind: report.value.blob === 0 ? "output" : "files", bytes: report.value.data.length };
}

/** Finds out which limit the waiting reports exceed; undefined if none. */
export function waitingProblem({ output, files }: WaitingBytes): string | undefined {
  if (output > 2 * windowBytes) return `The worker sent more than ${windowBytes} bytes of output without a receipt.`;
  return files > maxFileBytes ? filesProblem : undefined;
}

/** The problem of a body whose attachments are too large together. */
export const filesProblem = `The worker sent more than ${maxFileBytes} bytes of attachments.`;
