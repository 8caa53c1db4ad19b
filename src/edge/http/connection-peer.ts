import { type Peer, peerOf } from "../../core/peer-uid.ts";
import type { Request } from "./handler.ts";

/** Returns the other end of a request's connection. */
export type ConnectionPeer = (request: Request) => Promise<Peer>;

/**
 * Creates the lookup of a door. The other end is looked up once per connection: each lookup reads the kernel's table of all
 * sockets, which takes milliseconds.
 */
export function createConnectionPeer(): ConnectionPeer {
  const known = new WeakMap<object, Promise<Peer>>();

  async function lookUp(request: Request, connection: object): Promise<Peer> {
    const peer = await peerOf(request.socket);
    // A client on this machine whose user is not found yet may be found by its next request.
    if (peer.isLocal && peer.uid === undefined) known.delete(connection);
    return peer;
  }

  return (request) => {
    const connection = connectionOf(request);
    const peer = known.get(connection) ?? lookUp(request, connection);
    known.set(connection, peer);
    return peer;
  };
}

/** Returns the same object for all requests of a connection; each stream of HTTP/2 has a socket object to itself. */
function connectionOf(request: Request): object {
  return "stream" in request ? (request.stream?.session ?? request.socket) : request.socket;
}
