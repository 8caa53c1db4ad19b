import { connect } from "node:http2";
import { once } from "node:events";
import { test } from "vitest";
import { startServer } from "/work/main/test/rpc/server.ts";
test("x", async () => {
  const server = await startServer();
  for (const [path, ct] of [["/opencode.tool.v1.ToolService/GetServerInfo","application/grpc"],["/opencode.tool.v1.ToolService/GetServerInfo","application/json"],["/opencode.tool.v1.ToolService/WatchSession","application/grpc"],["/opencode.tool.v1.ToolService/WatchSession","application/connect+json"]]) {
  const session = connect(server.url);
  const req = session.request({ ":method": "POST", ":path": path, "content-type": ct, te: "trailers", authorization: "Bearer caller-token" }, { endStream: false });
  const out=[]
  req.on("trailers", (t) => out.push("trailers", t["grpc-status"]));
  req.on("response", (h) => out.push("response", h[":status"], h["grpc-status"]));
  req.on("data", (d) => out.push(String(d)));
  req.on("close", () => out.push("close", req.rstCode));
  req.on("error", (e) => out.push("error", e.message));
  req.on("end", () => out.push("end"));
  const b = Buffer.alloc(100); b[1]=0x7f;
  req.write(ct.includes("grpc")||ct.includes("connect") ? b : Buffer.alloc(5_000_000));
  await once(req, "end");
  await new Promise(r => setTimeout(r, 100));
  console.log(path, ct, "closed?", req.closed, out);
  }
  const t = Date.now();
  await server.close(3000);
  console.log("close took", Date.now()-t);
});
