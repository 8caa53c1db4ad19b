import { once } from "node:events";
import { Agent, createServer as createHttp1Server, get } from "node:http";
import { connect, createServer as createHttp2Server } from "node:http2";
import type { AddressInfo, Server } from "node:net";
import { expect, onTestFinished, test } from "vitest";
import type { Peer } from "../../src/core/peer-uid.ts";
import { createConnectionPeer, type Request } from "../../src/edge/http/handler.ts";

test.each([
  ["HTTP/1.1", startHttp1],
  ["HTTP/2", startHttp2],
])("the user of a connection is looked up once for all of its requests (%s)", async (_, start) => {
  const lookups: Promise<Peer>[] = [];
  const connectionPeer = createConnectionPeer();
  const open = await start((request) => void lookups.push(connectionPeer(request)));
  const [one, other] = [open(), open()];
  await one();
  await one();
  await other();
  expect(lookups).toHaveLength(3);
  expect(lookups[1]).toBe(lookups[0]);
  expect(lookups[2]).not.toBe(lookups[0]);
  for (const lookup of lookups) expect(await lookup).toEqual({ isLocal: true, uid: process.getuid?.() });
});

/** Starts a server; returns the function that opens a connection, which returns the one that sends a request over it. */
async function startHttp1(handle: (request: Request) => void) {
  const server = createHttp1Server((request, response) => {
    handle(request);
    response.end();
  });
  const port = await listen(server);
  return () => {
    const agent = new Agent({ keepAlive: true, maxSockets: 1 });
    onTestFinished(() => agent.destroy());
    return async () => {
      const [response] = await once(get({ port, agent, host: "127.0.0.1" }), "response");
      await once(response.resume(), "end");
    };
  };
}

async function startHttp2(handle: (request: Request) => void) {
  const server = createHttp2Server((request, response) => {
    handle(request);
    response.end();
  });
  const port = await listen(server);
  return () => {
    const session = connect(`http://127.0.0.1:${port}`);
    onTestFinished(() => session.destroy());
    return async () => {
      const stream = session.request({ ":path": "/" });
      await once(stream.resume(), "end");
    };
  };
}

async function listen(server: Server): Promise<number> {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  return (server.address() as AddressInfo).port;
}
