import type { Socket } from "node:net";

/** Detects the version of HTTP by the first bytes of a connection, which stay unread: HTTP/2 begins with `PRI`. */
export function detectHttpVersion(socket: Socket, timeoutMs: number, onDetected: (isHttp2: boolean) => void): void {
  let head = Buffer.alloc(0);
  const cut = () => socket.destroy();
  const timer = setTimeout(cut, timeoutMs);
  const stop = () => {
    clearTimeout(timer);
    socket.off("end", cut).off("close", stop).off("readable", look);
  };
  const look = () => {
    const chunk: Buffer | null = socket.read();
    if (chunk === null) return;
    head = Buffer.concat([head, chunk]);
    const begin = head.toString("latin1", 0, 3);
    if (begin.length < 3 && "PRI".startsWith(begin)) return;
    stop();
    socket.unshift(head);
    onDetected(begin === "PRI");
  };
  socket.on("end", cut).on("close", stop).on("readable", look);
}
