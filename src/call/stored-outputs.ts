import { create } from "@bufbuild/protobuf";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import {
  type ReadToolOutputRequest,
  type ReadToolOutputResponse,
  ReadToolOutputResponseSchema,
} from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import type { Principal } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";
import type { OutputStore } from "./ports.ts";
import type { Sessions } from "./sessions.ts";

/** Reads stored outputs. */
export type StoredOutputs = ReturnType<typeof createStoredOutputs>;

const maxBytes = 1024 * 1024;
const maxLines = 2_000;

/** Creates access to stored outputs by bytes or by lines, a bounded piece at a time. */
export function createStoredOutputs({
  sessions,
  outputs,
}: {
  sessions: Pick<Sessions, "look">;
  outputs: Pick<OutputStore, "read">;
}) {
  async function piece(root: string, output: string, offset: number, limit: number) {
    const id = output.startsWith("toolgate-output:") ? output.slice("toolgate-output:".length) : output;
    const read = /^[A-Za-z0-9_-]+$/.test(id) ? await outputs.read(root, id, offset, limit) : undefined;
    if (read) return read;
    throw new RequestError(
      ErrorReason.NO_SUCH_OUTPUT,
      `no output ${output} is stored in this session tree; outputs are retained for 7 days`,
      { output },
    );
  }

  async function byBytes(root: string, output: string, offset: number, limit: number): Promise<ReadToolOutputResponse> {
    const { data, total } = await piece(root, output, offset, limit);
    if (offset > total) throw beyond("bytes", offset, total);
    return answer(data, offset, total, 0);
  }

  /** Finds the first line by reading from the start: memory is bounded by one piece, time by the offset. */
  async function byLines(root: string, output: string, first: number, count: number): Promise<ReadToolOutputResponse> {
    let line = 1;
    for (let at = 0; ; ) {
      const { data, total } = await piece(root, output, at, maxBytes);
      const buffer = Buffer.from(data.buffer, data.byteOffset, data.byteLength);
      let start = 0;
      for (let newline = buffer.indexOf(10); line < first && newline !== -1; newline = buffer.indexOf(10, start)) {
        start = newline + 1;
        line += 1;
      }
      if (line === first && start < buffer.length) return await lines(root, output, at + start, line, count);
      at += data.length;
      if (at < total && data.length > 0) continue;
      if (line === first && total === 0) return answer(data, 0, 0, 0);
      throw beyond("lines", first, line);
    }
  }

  async function lines(
    root: string,
    output: string,
    offset: number,
    first: number,
    count: number,
  ): Promise<ReadToolOutputResponse> {
    const { data, total } = await piece(root, output, offset, maxBytes);
    const buffer = Buffer.from(data.buffer, data.byteOffset, data.byteLength);
    let end = 0;
    let line = first;
    for (let newline = buffer.indexOf(10); newline !== -1 && line < first + count; newline = buffer.indexOf(10, end)) {
      end = newline + 1;
      line += 1;
    }
    // A last line without newline, or a line that is longer than a piece, is returned as far as it was read.
    if (line < first + count && (offset + buffer.length === total || end === 0)) end = buffer.length;
    return answer(buffer.subarray(0, end), offset, total, offset + end < total ? line : 0);
  }

  return {
    async read(
      principal: Principal,
      { sessionId, output, range }: ReadToolOutputRequest,
    ): Promise<ReadToolOutputResponse> {
      const { session } = await sessions.look(principal, sessionId, "read");
      const root = session.rootSessionId;
      if (range.case === "lines") {
        const { offset, limit } = range.value;
        return await byLines(root, output, Math.max(1, Number(offset)), Math.min(limit || maxLines, maxLines));
      }
      const { offset, limit } = range.case === "bytes" ? range.value : { offset: 0n, limit: 0 };
      return await byBytes(root, output, Number(offset), Math.min(limit || maxBytes, maxBytes));
    },
  };
}

function answer(data: Uint8Array, offset: number, total: number, nextLine: number): ReadToolOutputResponse {
  return create(ReadToolOutputResponseSchema, {
    data: new Uint8Array(data),
    offset: BigInt(offset),
    totalBytes: BigInt(total),
    nextLine: BigInt(nextLine),
    end: offset + data.length >= total,
  });
}

function beyond(unit: "bytes" | "lines", offset: number, total: number): RequestError {
  return new RequestError(ErrorReason.INVALID_RANGE, `the output has ${total} ${unit}; ${offset} is beyond its end`, {
    [`total_${unit}`]: String(total),
  });
}
