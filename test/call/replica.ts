import { mkdtemp, realpath, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create } from "@bufbuild/protobuf";
import { onTestFinished } from "vitest";
import { CreateSessionRequestSchema } from "../../gen/opencode/tool/v1/session_service_pb.ts";
import { CallToolRequestSchema } from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { openCrashMarks } from "../../src/call/crash-marks.ts";
import type { CallStore, Store } from "../../src/call/ports.ts";
import { createReplica } from "../../src/compose/replica.ts";
import { readLimits } from "../../src/config/schema.ts";
import type { ConfiguredRules } from "../../src/policy/layers.ts";
import { openSqliteStore } from "../../src/store/sqlite/store.ts";
import type { DefinedTool } from "../../src/tool/tool.ts";
import { agent } from "../model/clients.ts";
import { quiet } from "../store/redis-store.ts";

/** Options of a replica under test. */
export interface TestReplicaOptions {
  tools: DefinedTool[];
  leaseMs?: number;
  /** The rules in force; a test may replace them. */
  rules?: ConfiguredRules;
  /** Replaces steps of the store. */
  through?(store: Store): Partial<CallStore>;
}

/** Starts one replica over SQLite, without timers and network: nothing happens unless a test makes it. Ends with the test. */
export async function startReplica({
  tools,
  leaseMs = 60_000,
  rules = { config: [], agents: new Map() },
  through = () => ({}),
}: TestReplicaOptions) {
  const directory = await realpath(await mkdtemp(join(tmpdir(), "toolgate-replica-")));
  const store = await openSqliteStore({ directory });
  const over = Promise.withResolvers<void>();
  const crashMarks = openCrashMarks(join(directory, "entered"), "r1");
  const replica = createReplica({
    config: {
      askMs: 60_000,
      dataDirectory: "/data",
      file: "/toolgate.toml",
      leaseMs,
      limits: {
        ...readLimits(),
        requestBytes: 65_536,
        inputBytes: 65_536,
        outputBytes: 65_536,
        timeoutMs: 60_000,
        maxTimeoutMs: 60_000,
        openAsks: 10,
        longAsks: 10,
        runningCalls: 10,
        replicaRunning: 1_000,
        reportMs: 600_000,
        collectMs: 600_000,
      },
      unattended: "wait",
      workspaces: new Map([["default", directory]]),
    },
    rules,
    store: { ...store, calls: { ...store.calls, ...through(store) } },
    replicaId: "r1",
    tools,
    crashMarks,
    observer: {
      began: () => ({ step: (_, work) => work(undefined), over: () => over.resolve() }),
      ended() {},
      waited() {},
      differed() {},
    },
    log: quiet,
  });
  onTestFinished(async () => {
    await replica.calls.drain(0);
    crashMarks.close();
    await store.calls.close();
    await rm(directory, { recursive: true, force: true });
  });
  return {
    ...replica,
    store,
    directory,
    crashMarks,
    /** Resolves when the replica has stopped running a call. */
    over: over.promise,
    /** Opens call `c1` of a tool, in a new session. */
    async call(tool: string, input = {}) {
      await replica.sessions.create(agent, create(CreateSessionRequestSchema, { sessionId: "ses_a" }));
      await replica.calls.open(agent, create(CallToolRequestSchema, { sessionId: "ses_a", callId: "c1", tool, input }));
    },
    /** Reads call `c1` from the store. */
    async record() {
      const record = await store.calls.getCall("ses_a", "c1");
      if (!record) throw new Error("the call is not stored");
      return record;
    },
  };
}
