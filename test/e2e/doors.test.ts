import { expect, test } from "vitest";
import { connectHttp } from "../mcp/clients.ts";
import { connect } from "./clients.ts";
import { startService } from "./service.ts";

/** Opens every door that a setting opens. */
const settings = "[rest]\nenabled = true\n";

test("with all doors open each one answers at its own paths", async () => {
  const service = await startService({ settings });
  const ask = async (method: string, path: string, accept = "*/*") => {
    const authorization = `Bearer ${path === "/metrics" ? "admin" : "caller"}-token-for-tests`;
    const headers = { authorization, accept, "content-type": "application/json" };
    const body = method === "POST" ? "{}" : null;
    const response = await fetch(new URL(path, service.url), { method, headers, body });
    return { status: response.status, text: await response.text() };
  };
  const { tools, newSession } = connect(service, "caller");
  expect(await newSession()).toMatch(/^ses/);
  expect((await tools.listTools({})).tools).not.toEqual([]);
  expect(await ask("GET", "/healthz")).toEqual({ status: 200, text: "ok\n" });
  expect((await ask("GET", "/readyz")).status).toBe(200);
  expect((await ask("GET", "/metrics")).text).toContain("toolgate_");
  expect((await ask("POST", "/hooks/claude")).text).toContain("hookSpecificOutput");
  expect((await ask("GET", "/", "text/html")).text.toLowerCase()).toContain("<!doctype html>");
  expect((await ask("POST", "/console/sign-in")).status).not.toBe(404);
  // Clients of opencode's API read the state of MCP servers where clients of MCP may ask for a stream, which this service has not.
  expect(await ask("GET", "/mcp", "application/json")).toEqual({ status: 200, text: "{}" });
  expect(JSON.parse((await ask("GET", "/config")).text)).toEqual({});
  expect((await ask("GET", "/mcp", "text/event-stream")).status).toBe(405);

  // The second address is the one that a program of an agent gets, for the session of its task.
  for (const path of ["/mcp", "/mcp/ses_of_a_task"]) {
    const client = await connectHttp(service, { path });
    expect((await client.listTools()).tools.map(({ name }) => name)).toContain("read");
    await client.close();
  }
});
