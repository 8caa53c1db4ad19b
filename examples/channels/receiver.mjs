// Takes the webhook of a channel (docs/phone.md): TOOLGATE_KEY is the key in its secret_file, http://127.0.0.1:PORT/ its url.
// npm install standardwebhooks
import { createServer } from "node:http";
import { text } from "node:stream/consumers";
import { Webhook } from "standardwebhooks";

/** Gives each event to `deliver`; Toolgate repeats one that it throws at. */
export function receive(deliver) {
  const webhook = new Webhook(process.env.TOOLGATE_KEY);
  return createServer(async (request, response) => {
    const body = await text(request);
    try {
      webhook.verify(body, request.headers);
    } catch {
      return response.writeHead(401).end();
    }
    const status = await deliver(JSON.parse(body), request.headers["webhook-id"]).then(
      () => 204,
      () => 502,
    );
    response.writeHead(status).end();
  }).listen(process.env.PORT, "127.0.0.1");
}

/** One line for people: what an agent wrote is text in it. */
export function wordsOf({ type, data }) {
  if (type === "permission.requested") return `${data.agent ?? "An agent"} asks: ${data.permission ?? "see the link"}`;
  return type === "permission.settled"
    ? `${data.outcome ?? "settled"} by ${data.by ?? "a person"}`
    : "Toolgate: a test";
}

/** Posts JSON; throws unless it is accepted. */
export async function post(url, body, headers = {}) {
  const answer = await fetch(url, {
    ...{ method: "POST", headers: { "content-type": "application/json", ...headers } },
    body: JSON.stringify(body),
  });
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).message ?? `status ${answer.status}`);
  return await answer.json().catch(() => ({}));
}
