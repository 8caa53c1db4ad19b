/** connect-node before a table on disk: a call is durable before it starts, its end before it is answered; nothing else. */
import { createServer } from "node:http2";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { create, toBinary } from "@bufbuild/protobuf";
import { connectNodeAdapter } from "@connectrpc/connect-node";
import { ToolPartSchema } from "../../gen/opencode/tool/v1/tool_pb.ts";
import {
  CallToolRequestSchema,
  CallToolResponseSchema,
  ToolService,
} from "../../gen/opencode/tool/v1/tool_service_pb.ts";
import { announce } from "./announce.ts";
import { completed, part } from "./echo-part.ts";

const [folder = ""] = process.argv.slice(2);
const db = new DatabaseSync(join(folder, `durable-${process.pid}.sqlite`));
db.exec("PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL");
db.exec("CREATE TABLE calls (id TEXT PRIMARY KEY, request BLOB NOT NULL, part BLOB)");
const accept = db.prepare("INSERT INTO calls (id, request) VALUES (?, ?)");
const end = db.prepare("UPDATE calls SET part = ? WHERE id = ?");

/** Writes of one turn of the event loop share one commit, since a commit is what costs. */
let waiting: { write(): void; done(): void }[] = [];
function write(work: () => unknown): Promise<void> {
  return new Promise((done) => {
    if (waiting.length === 0) setImmediate(commit);
    waiting.push({ write: work, done });
  });
}

function commit(): void {
  const steps = waiting;
  waiting = [];
  db.exec("BEGIN");
  for (const { write } of steps) write();
  db.exec("COMMIT");
  for (const { done } of steps) done();
}

const rpcs = connectNodeAdapter({
  routes: (router) =>
    router.service(ToolService, {
      async callTool(request) {
        await write(() => accept.run(request.callId, toBinary(CallToolRequestSchema, request)));
        const ended = create(ToolPartSchema, part(request, completed(request)));
        await write(() => end.run(toBinary(ToolPartSchema, ended), request.callId));
        return create(CallToolResponseSchema, { part: ended, lastSeq: 3n, storeId: "store" });
      },
    }),
});
announce(createServer(rpcs));
