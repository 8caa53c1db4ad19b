import { spawn } from "node:child_process";
import { mkdir, mkdtemp, realpath, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { create, type JsonObject, type MessageInitShape } from "@bufbuild/protobuf";
import { sizeDelimitedDecodeStream, sizeDelimitedEncode } from "@bufbuild/protobuf/wire";
import {
  WorkResponseSchema as responseSchema,
  type WorkerAnswer,
  type WorkerBodyRequest,
  WorkerFileKind,
  type WorkerHello,
  type WorkerResult,
  type WorkRequest,
  WorkRequestSchema,
  type WorkResponseSchema,
} from "../../../gen/opencode/tool/v1/worker_pb.ts";
import { toolProcessArgs } from "../../../src/bodies/tool-process-args.ts";
import { assets } from "../../../src/core/assets.ts";

type Response = MessageInitShape<typeof WorkResponseSchema>["message"];

/** A runtime of tool processes. */
export interface Runtime {
  name: "node" | "bun";
  program: string;
}

export const node: Runtime = { name: "node", program: process.execPath };

/** The end of a body, with what it sent before. */
export interface EndedBody {
  result: WorkerResult["outcome"];
  /** By blob; 0 is the output. */
  blobs: Map<number, Buffer>;
  progress: { title?: string | undefined; metadata?: JsonObject | undefined }[];
  requests: WorkerBodyRequest["request"][];
}

/** Options of a run. */
export interface CallOptions {
  agent?: string;
  detail?: Uint8Array;
  callId?: string;
  /** Answers a request; undefined: none comes. */
  answer?(request: WorkerBodyRequest["request"]): WorkerAnswer["answer"] | undefined;
  /** Cancels the call when it first reports progress. */
  isCancelled?: boolean;
}

/** A tool process that a test started, and the directory of its files. */
export interface StartedProcess {
  readonly hello: WorkerHello;
  readonly directory: string;
  send(message: Response): void;
  /** Returns the first message, past or coming, that a function picks. */
  next<T>(pick: (message: WorkRequest["message"]) => T | undefined): Promise<T>;
  call(tool: string, input: JsonObject, options?: CallOptions): Promise<EndedBody>;
  /** Everything that it printed. */
  stderr(): string;
  closeInput(): void;
  readonly exited: Promise<number | null>;
  [Symbol.asyncDispose](): Promise<void>;
}

/** Writes files into a new directory and returns its path. */
export async function writeFiles(files: Readonly<Record<string, string>>): Promise<string> {
  const directory = await realpath(await mkdtemp(join(tmpdir(), "toolgate-process-")));
  for (const [path, content] of Object.entries(files)) {
    await mkdir(dirname(join(directory, path)), { recursive: true });
    await writeFile(join(directory, path), content);
  }
  return directory;
}

/** Input of a test: files to write, and the files to load, by absolute paths or relative to the directory. */
export interface StartOptions {
  files?: Readonly<Record<string, string>>;
  directory?: string;
  load: readonly string[];
  kind?: "tools" | "plugin";
  expected?: Readonly<Record<string, string>>;
  runtime?: Runtime;
}

/** Starts a process, loads files and waits for its hello. */
export async function startProcess(options: StartOptions): Promise<StartedProcess> {
  const { runtime = node, kind = "tools", load, expected = {} } = options;
  const directory = options.directory ?? (await writeFiles(options.files ?? {}));
  const child = spawn(runtime.program, [...toolProcessArgs(runtime.name), fileURLToPath(assets.toolProcess)], {
    cwd: directory,
    env: { PATH: process.env.PATH ?? "", HOME: directory },
    stdio: ["ignore", "pipe", "pipe", "pipe", "pipe"],
  });
  const [, stdout, stderr, input, output] = child.stdio;
  let text = "";
  stdout?.on("data", (chunk) => {
    text += chunk;
  });
  stderr?.on("data", (chunk) => {
    text += chunk;
  });
  const exited = new Promise<number | null>((resolve) => void child.once("close", resolve));
  input?.on("error", () => undefined);
  const seen: WorkRequest["message"][] = [];
  let wake = Promise.withResolvers<void>();
  let isEnded = false;
  const reading = (async () => {
    for await (const { message } of sizeDelimitedDecodeStream(WorkRequestSchema, output as AsyncIterable<Uint8Array>)) {
      seen.push(message);
      wake.resolve();
      wake = Promise.withResolvers();
    }
  })().finally(() => {
    isEnded = true;
    wake.resolve();
  });
  const send = (message: Response) => {
    const bytes = sizeDelimitedEncode(responseSchema, create(responseSchema, { ...(message && { message }) }));
    if (input && "write" in input) input.write(bytes);
  };
  async function next<T>(pick: (message: WorkRequest["message"]) => T | undefined): Promise<T> {
    for (let at = 0; ; at += 1) {
      while (at >= seen.length) {
        if (isEnded) throw new Error(`the process has ended: ${text}`);
        await wake.promise;
      }
      const picked = pick(seen[at] ?? { case: undefined });
      if (picked !== undefined) return picked;
    }
  }
  send({
    case: "load",
    value: {
      files: load.map((file) => resolve(directory, file)),
      kind: kind === "plugin" ? WorkerFileKind.PLUGIN : WorkerFileKind.TOOLS,
      project: { directory, worktree: directory, id: "default" },
      expected: Object.fromEntries(Object.entries(expected).map(([path, hash]) => [join(directory, path), hash])),
    },
  });
  const hello = await next((message) => (message.case === "hello" ? message.value : undefined));
  return {
    ...{ hello, directory, send, next, exited },
    stderr: () => text,
    closeInput: () => input?.destroy(),
    call: (tool, input, callOptions) => runCall({ directory, send, next }, tool, input, callOptions),
    async [Symbol.asyncDispose]() {
      child.kill("SIGKILL");
      await exited;
      await reading.catch(() => undefined);
      if (options.directory === undefined) await rm(directory, { recursive: true, force: true });
    },
  };
}

let calls = 0;

/** Starts a body and waits for its end. */
async function runCall(
  { directory, send, next }: Pick<StartedProcess, "directory" | "send" | "next">,
  tool: string,
  input: JsonObject,
  { agent = "build", detail, callId, answer = () => ({ case: undefined }), isCancelled = false }: CallOptions = {},
): Promise<EndedBody> {
  calls += 1;
  const assignment = `run-${calls}`;
  const ended: Omit<EndedBody, "result"> = { blobs: new Map(), progress: [], requests: [] };
  send({
    case: "start",
    value: {
      ...{ assignment, attempt: 1, timeoutMs: 60_000 },
      ...(detail && { detail }),
      call: {
        ...{ agent, directory, tool, input, workspace: "default", sessionId: "ses_1", messageId: "msg_1" },
        ...{ callId: callId ?? assignment, providerId: "acme", modelId: "m1", rootSessionId: "ses_1" },
      },
    },
  });
  for (let count = 0; ; count += 1) {
    let at = -1;
    const { report } = await next((message) => {
      if (message.case !== "report" || message.value.assignment !== assignment) return undefined;
      at += 1;
      return at === count ? message.value : undefined;
    });
    switch (report.case) {
      case "result":
        return { ...ended, result: report.value.outcome };
      case "progress":
        ended.progress.push({ title: report.value.title, metadata: report.value.metadata });
        if (isCancelled) send({ case: "cancel", value: { assignment, message: "enough", graceMs: 20 } });
        break;
      case "output": {
        const { blob, data, offset } = report.value;
        const before = ended.blobs.get(blob) ?? Buffer.alloc(0);
        if (offset !== BigInt(before.length)) throw new Error(`blob ${blob} has a gap at ${offset}`);
        ended.blobs.set(blob, Buffer.concat([before, data]));
        break;
      }
      case "request": {
        ended.requests.push(report.value.request);
        const reply = answer(report.value.request);
        if (reply) send({ case: "answer", value: { assignment, number: report.value.number, answer: reply } });
      }
    }
  }
}

/** Returns the output of a completed body; throws the error of one that failed. */
export function outputOf({ result, blobs }: EndedBody): string {
  if (result.case === "completed") return result.value.output ?? blobs.get(0)?.toString() ?? "";
  throw new Error(result.case === "failed" ? result.value.message : "the body did not end");
}
