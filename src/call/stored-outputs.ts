import { create, fromJson, type JsonObject, type JsonValue } from "@bufbuild/protobuf";
import { type Value, ValueSchema } from "@bufbuild/protobuf/wkt";
import { ErrorReason } from "../../gen/opencode/tool/v1/error_reason_pb.ts";
import type { CallView, Preview } from "../../gen/opencode/tool/v1/tool_pb.ts";
import {
  type ReadToolOutputRequest,
  type ReadToolOutputResponse,
  ReadToolOutputResponseSchema,
} from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { createCallView, isViewCut, type ShownCall } from "../approval/permission-request.ts";
import { newId } from "../core/ids.ts";
import { canonicalJson } from "../core/json.ts";
import type { Principal } from "../core/principal.ts";
import { RequestError } from "../core/request-error.ts";
import { cutPreview } from "./decide.ts";
import type { Engine } from "./engine.ts";
import { createWindow } from "./output.ts";
import type { OutputStore } from "./ports.ts";
import { ensureRecorded, type Running } from "./running.ts";
import type { Sessions } from "./sessions.ts";
import { inputOf } from "./state.ts";

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

/** Bytes of structured output (as JSON) or of an error text that a part may hold. What is larger spills to the output store. */
const maxInPart = 51_200;

/** Stores bytes as an output of the call's session tree, and returns its name. */
export async function storeOutput(engine: Engine, call: Running, bytes: Uint8Array): Promise<string> {
  return `toolgate-output:${await storeBytes(engine, call, bytes)}`;
}

/** Stores bytes as an output of the call's session tree, and returns its id. */
export async function storeBytes({ outputs, store }: Engine, call: Running, bytes: Uint8Array): Promise<string> {
  await ensureRecorded(call);
  const id = newId("out", store.now());
  await outputs.append(call.record.ref.root, id, bytes);
  return id;
}

/** Returns the preview with its diff cut to what an ask holds; a diff that was cut is stored whole, under the preview's url. */
export async function storePreview(
  { outputs, store }: Engine,
  { record }: Running,
  preview: Preview,
): Promise<Preview> {
  const id = newId("out", store.now());
  const cut = cutPreview(preview, `toolgate-output:${id}`);
  if (cut.url !== "") await outputs.append(record.ref.root, id, Buffer.from(preview.diff));
  return cut;
}

/** Builds what approvers see of a call; where the view has only the beginning of a value, the whole input is stored under its url. */
export async function storeView(
  { outputs, store }: Engine,
  { record: { part, ref } }: Pick<Running, "record">,
  shown: Omit<ShownCall, "tool" | "input">,
): Promise<CallView> {
  const input = inputOf(part);
  const view = createCallView({ ...shown, tool: part.tool, input });
  if (!isViewCut(view)) return view;
  const id = newId("out", store.now());
  await outputs.append(ref.root, id, Buffer.from(canonicalJson(input)));
  return { ...view, inputUrl: `toolgate-output:${id}` };
}

/** Returns structured output for the part; a value that is too large is stored, and the metadata names it. */
export async function storeStructured(
  engine: Engine,
  call: Running,
  value: JsonValue | undefined,
): Promise<{ value?: Value; metadata?: JsonObject }> {
  if (value === undefined) return {};
  const bytes = Buffer.from(JSON.stringify(value));
  if (bytes.length <= maxInPart) return { value: fromJson(ValueSchema, value) };
  return { metadata: { structuredPath: await storeOutput(engine, call, bytes) } };
}

/** Returns an error text for the model; a text that is too long is stored whole and cut in the middle. */
export async function storeError(engine: Engine, call: Running, text: string): Promise<string> {
  const bytes = Buffer.from(text);
  const window = createWindow({ end: "both", lines: 2_000, bytes: maxInPart });
  window.push(bytes);
  return window.isOver() ? window.bound(await storeOutput(engine, call, bytes)).text : text;
}
