import { METHODS } from "node:http";
import type { Socket } from "node:net";

/**
 * Detects the version of HTTP by the first bytes of a connection, which stay unread: HTTP/2 begins with its preface, HTTP/1.1
 * with a method. A connection that begins with anything else is cut, as is one that does not send either of them whole within
 * `headersMs` of its first byte. One that sends nothing is idle, and is cut after `idleMs`: clients open connections in advance,
 * and a request that is sent while its connection is being cut is lost.
 */
export function detectHttpVersion(
  socket: Socket,
  { idleMs, headersMs }: { idleMs: number; headersMs: number },
  onDetected: (isHttp2: boolean) => void,
): void {
  let head = Buffer.alloc(0);
  const cut = () => socket.destroy();
  let timer = setTimeout(cut, idleMs);
  const stop = () => {
    clearTimeout(timer);
    socket.off("end", cut).off("close", stop).off("readable", look);
  };
  const look = () => {
    const chunk: Buffer | null = socket.read();
    if (chunk === null) return;
    if (head.length === 0) {
      clearTimeout(timer);
      timer = setTimeout(cut, headersMs);
    }
    head = Buffer.concat([head, chunk]);
    const version = versionOf(head.toString("latin1", 0, preface.length + 2));
    if (version === "undecided") return;
    stop();
    if (version === "none") return cut();
    socket.unshift(head);
    onDetected(version === "2");
  };
  socket.on("end", cut).on("close", stop).on("readable", look);
}

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const methods = METHODS.map((method) => `${method} `);

function versionOf(text: string): "1.1" | "2" | "none" | "undecided" {
  if (text.startsWith(preface)) return "2";
  // A client may send an empty line before its request.
  const begin = text.replace(/^\r?\n?/, "");
  if (methods.some((method) => begin.startsWith(method))) return "1.1";
  if (preface.startsWith(text)) return "undecided";
  return methods.some((method) => method.startsWith(begin)) ? "undecided" : "none";
}
