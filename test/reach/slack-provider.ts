import { createHash } from "node:crypto";
import { once } from "node:events";
import { createServer, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import type { Duplex } from "node:stream";
import { onTestFinished } from "vitest";

/** The app, its team and the channel of the fake. */
export const slackIds = { app: "A0TOOLGATE", team: "T0TEAM", channel: "C0OPS", user: "U0ANN" };
export const appToken = `xapp-1-${slackIds.app}-1-secret`;
export const botToken = "xoxb-1-secret";

/** A call of Slack's Web API. */
export interface SlackRequest {
  method: string;
  // The form is that of the vendor, which `problemsOf` checks.
  // biome-ignore lint/suspicious/noExplicitAny: the messages are read by path in tests.
  body: any;
}

/** Answer of the fake to one call, in place of the usual one; `hold` never answers. */
export type SlackOverride = { status?: number; headers?: Record<string, string>; body?: object } | "hold";

/**
 * Starts Slack on this machine: the methods that Toolgate calls, refused where a documented limit is exceeded, and sockets. The limits
 * are those of docs.slack.dev: reference/block-kit, reference/methods, apis/events-api/using-socket-mode.
 */
export async function startSlack() {
  const requests: SlackRequest[] = [];
  const problems: string[] = [];
  const overrides: SlackOverride[] = [];
  const sockets = new Set<Duplex>();
  const acks = new Map<string, object | undefined>();
  let [count, opened, posted, envelopes] = [0, 0, 0, 0];
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on("data", (chunk: Buffer) => chunks.push(chunk));
    request.on("end", () => {
      const method = (request.url ?? "").replace("/api/", "");
      const body = JSON.parse(Buffer.concat(chunks).toString() || "{}");
      const wanted = method === "apps.connections.open" ? appToken : botToken;
      if (request.headers.authorization !== `Bearer ${wanted}`)
        return answer(response, { ok: false, error: "invalid_auth" });
      if (method === "apps.connections.open") {
        const { port } = server.address() as AddressInfo;
        return answer(response, { ok: true, url: `ws://127.0.0.1:${port}/link/?ticket=${++count}` });
      }
      requests.push({ method, body });
      problems.push(...problemsOf(method, body));
      const override = method === "chat.postMessage" ? overrides.shift() : undefined;
      if (override === "hold") return;
      if (override)
        return void response
          .writeHead(override.status ?? 200, override.headers)
          .end(JSON.stringify(override.body ?? {}));
      const ts = body.ts ?? `1700000000.${String(++posted).padStart(6, "0")}`;
      answer(response, { ok: true, channel: body.channel, ts });
    });
  });
  server.on("upgrade", ({ headers }, socket: Duplex) => {
    const key = createHash("sha1").update(`${headers["sec-websocket-key"]}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`);
    socket.write(
      `HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${key.digest("base64")}\r\n\r\n`,
    );
    sockets.add(socket);
    opened += 1;
    let left = Buffer.alloc(0);
    socket.on("data", (chunk: Buffer) => {
      left = Buffer.concat([left, chunk]);
      for (let frame = firstFrame(left); frame; frame = firstFrame(left)) {
        left = left.subarray(frame.end);
        if (frame.opcode === 8) socket.end();
        if (frame.opcode !== 1) continue;
        const { envelope_id: id, payload } = JSON.parse(frame.text);
        acks.set(id, payload);
      }
    });
    const gone = () => sockets.delete(socket);
    socket
      .on("close", gone)
      .on("error", gone)
      .on("end", () => socket.destroy());
    send(socket, { type: "hello", num_connections: sockets.size, connection_info: { app_id: slackIds.app } });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => {
    server.closeAllConnections();
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/api/`,
    requests,
    problems,
    overrides,
    acks,
    sockets: () => sockets.size,
    /** Number of sockets that were opened. */
    opened: () => opened,
    of: (method: string) => requests.filter((each) => each.method === method).map(({ body }) => body),
    /** Sends a frame to the newest socket. */
    push(frame: object) {
      const socket = [...sockets].at(-1);
      if (socket) send(socket, frame);
    },
    /** Sends a payload in an envelope; returns its id. */
    deliver(payload: unknown, type = "interactive"): string {
      const id = `env-${++envelopes}`;
      this.push({ envelope_id: id, type, accepts_response_payload: true, payload });
      return id;
    },
  };
}

const answer = (response: ServerResponse, body: object) =>
  void response.setHeader("content-type", "application/json").end(JSON.stringify(body));

function send(socket: Duplex, frame: object): void {
  const data = Buffer.from(JSON.stringify(frame));
  const head =
    data.length < 126
      ? Buffer.from([0x81, data.length])
      : Buffer.from([0x81, 126, data.length >> 8, data.length & 255]);
  socket.write(Buffer.concat([head, data]));
}

/** Reads the first frame of a client, which is masked; undefined if it is not here yet. */
function firstFrame(bytes: Buffer): { opcode: number; text: string; end: number } | undefined {
  if (bytes.length < 2) return undefined;
  const short = (bytes[1] ?? 0) & 127;
  const start = short === 126 ? 4 : 2;
  if (bytes.length < start) return undefined;
  const length = short === 126 ? bytes.readUInt16BE(2) : short;
  const end = start + 4 + length;
  if (bytes.length < end) return undefined;
  const mask = bytes.subarray(start, start + 4);
  const data = Buffer.from(bytes.subarray(start + 4, end).map((byte, i) => byte ^ (mask[i % 4] ?? 0)));
  return { opcode: (bytes[0] ?? 0) & 15, text: data.toString(), end };
}

/** Limits of texts by the path of their field, from the reference of Block Kit. */
export function problemsOf(method: string, body: Record<string, unknown>): string[] {
  const found: string[] = [];
  const check = (isRight: boolean, what: string) => void (isRight || found.push(`${method}: ${what}`));
  const visit = (value: unknown, path: string): void => {
    if (Array.isArray(value)) for (const [i, each] of value.entries()) visit(each, `${path}/${i}`);
    else if (typeof value === "object" && value !== null) {
      const {
        type,
        text,
        blocks,
        elements,
        value: own,
        title,
        private_metadata: metadata,
      } = value as Record<string, unknown>;
      const words = (text as { text?: string } | undefined)?.text ?? "";
      check(type !== "mrkdwn", `${path} is mrkdwn`);
      if (blocks !== undefined) check((blocks as unknown[]).length <= 50, `${path} has more than 50 blocks`);
      if (type === "header") check(words.length <= 150 && words !== "", `${path} is a header of ${words.length}`);
      if (type === "section") check(words.length <= 3_000 && words !== "", `${path} is a section of ${words.length}`);
      if (type === "button") check(words.length <= 75, `${path} is a button with ${words.length}`);
      if (type === "button" && own !== undefined) check((own as string).length <= 2_000, `${path} has a long value`);
      if (type === "actions") check((elements as unknown[]).length <= 25, `${path} has too many elements`);
      if (type === "context") check((elements as unknown[]).length <= 10, `${path} has too many elements`);
      if (type === "modal") check(String((title as { text?: string }).text).length <= 24, `${path} has a long title`);
      if (metadata !== undefined) check((metadata as string).length <= 3_000, `${path} has long metadata`);
      for (const [name, each] of Object.entries(value)) {
        if (name === "action_id" || name === "block_id" || name === "callback_id")
          check(String(each).length <= 255, `${path}/${name} is long`);
        visit(each, `${path}/${name}`);
      }
    }
  };
  visit(body, "");
  if (method.startsWith("chat.")) {
    check(body.channel === slackIds.channel, `channel ${body.channel}`);
    check(typeof body.text === "string" && body.text !== "" && body.text.length <= 4_000, "text");
    check(!/[<>]/.test(String(body.text)), `text has markup: ${body.text}`);
  }
  if (method === "views.open") check(/^\d+\.\d+\.\w+$/.test(String(body.trigger_id)), "trigger_id");
  return found;
}

/** Builds the payload of a press on a button of a message, as Slack sends it. */
export function pressOf(action: "approve" | "reject" | "open", value: string, ts: string) {
  return {
    type: "block_actions",
    user: { id: slackIds.user, username: "ann", team_id: slackIds.team },
    api_app_id: slackIds.app,
    token: "unused",
    container: { type: "message", message_ts: ts, channel_id: slackIds.channel },
    trigger_id: "1.2.abc",
    team: { id: slackIds.team, domain: "team" },
    enterprise: null,
    channel: { id: slackIds.channel, name: "ops" },
    message: { type: "message", ts },
    response_url: "https://hooks.slack.com/actions/x",
    actions: [{ action_id: action, block_id: "toolgate", type: "button", value, action_ts: "1.1" }],
  };
}

/** Builds the payload of a form that was sent. */
export function submitOf(
  callback: "link" | "reject",
  typed: string | null,
  metadata = JSON.stringify({ to: slackIds.channel }),
) {
  return {
    type: "view_submission",
    team: { id: slackIds.team, domain: "team" },
    user: { id: slackIds.user, name: "ann", team_id: slackIds.team },
    api_app_id: slackIds.app,
    view: {
      id: "V1",
      team_id: slackIds.team,
      app_id: slackIds.app,
      type: "modal",
      callback_id: callback,
      private_metadata: metadata,
      state: { values: { toolgate: { text: { type: "plain_text_input", value: typed } } } },
    },
  };
}
