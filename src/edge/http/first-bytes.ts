import type { Socket } from "node:net";

/**
 * Detects the version of HTTP by the first bytes of a connection, which stay unread: HTTP/2 begins with its preface. A
 * connection that sends neither a whole preface nor the beginning of anything else in `timeoutMs` is cut.
 */
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
    const begin = head.toString("latin1", 0, preface.length);
    if (begin.length < preface.length && preface.startsWith(begin)) return;
    stop();
    socket.unshift(head);
    // Three bytes decide the version; a preface that goes wrong later gets the answer of HTTP/2.
    onDetected(begin.startsWith("PRI"));
  };
  socket.on("end", cut).on("close", stop).on("readable", look);
}

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
