import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import { expect, onTestFinished, test } from "vitest";
import { peerOf, peerUid, serverUids } from "../../src/core/peer-uid.ts";

/** Connects to a server on this machine; resolves with both ends. */
async function connection(listen: string, to: string): Promise<{ client: Socket; served: Socket }> {
  const server = createServer().listen(0, listen);
  await once(server, "listening");
  const client = connect((server.address() as AddressInfo).port, to);
  const [[served]] = await Promise.all([once(server, "connection"), once(client, "connect")]);
  onTestFinished(() => {
    for (const socket of [client, served]) socket.destroy();
    server.close();
  });
  return { client, served };
}

test.each([
  ["127.0.0.1", "127.0.0.1"],
  ["::1", "::1"],
  ["::", "127.0.0.1"],
  ["127.0.0.1", "::ffff:127.0.0.1"],
])("the client of a server at %s that connects to %s belongs to the user of its process", async (listen, to) => {
  const { client, served } = await connection(listen, to);
  expect(await peerUid(served)).toBe(process.getuid?.());
  expect(await peerUid(client)).toBe(process.getuid?.());
  expect((await serverUids(client)).listeners).toEqual([process.getuid?.()]);
});

test("the user of a client that has left, or that is on another machine, is unknown", async () => {
  const { client, served } = await connection("127.0.0.1", "127.0.0.1");
  const { localAddress, localPort, remotePort } = served;
  const ends = { localAddress, localPort, remotePort, remoteAddress: "127.0.0.1" };
  expect(await peerUid(ends)).toBeDefined();
  expect(await peerUid({ ...ends, remoteAddress: "192.0.2.1" })).toBeUndefined();
  served.resume();
  client.end();
  await once(served, "close");
  expect(await peerUid(ends)).toBeUndefined();
  expect(await peerUid({})).toBeUndefined();
  expect(await peerOf(ends)).toEqual({ isLocal: true, uid: undefined });
  expect(await peerOf({ ...ends, remoteAddress: "192.0.2.1" })).toEqual({ isLocal: false, uid: undefined });
});

test("a stream that ends while its user is looked up, and forgets its connection, has that user", async () => {
  const { served } = await connection("127.0.0.1", "127.0.0.1");
  const { localAddress, localPort, remoteAddress, remotePort } = served;
  const stream = { localAddress, localPort, remoteAddress, remotePort };
  const peer = peerOf(stream);
  for (const name of ["localAddress", "localPort", "remoteAddress", "remotePort"] as const) delete stream[name];
  expect(await peer).toEqual({ isLocal: true, uid: process.getuid?.() });
});

test("a port at which nothing listens, or another address of it, has no listener", async () => {
  const { client } = await connection("127.0.0.2", "127.0.0.2");
  const { remotePort } = client;
  expect((await serverUids(client)).listeners).toEqual([process.getuid?.()]);
  expect((await serverUids({ remoteAddress: "127.0.0.1", remotePort })).listeners).toEqual([]);
  expect((await serverUids({ remoteAddress: "192.0.2.1", remotePort })).listeners).toEqual([]);
});
