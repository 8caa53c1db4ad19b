// `TELEGRAM_URL` is `https://api.telegram.org/botTOKEN`, `CHAT` the id of the chat, and `PEOPLE` says whose account
// is whose: `{"111": "prs_…"}`, ids of `toolgate people`. `TOOLGATE_TOKEN` has the role `relay`. Approve once needs
// `content = "full"` and `approve = true`, and stands under whole requests only. Text is a `pre` entity, in which
// Telegram makes no links. After a restart of the program, earlier buttons say Open the link.
import { setTimeout as delay } from "node:timers/promises";
import { post, receive, wordsOf } from "./receiver.mjs";

const { TELEGRAM_URL, CHAT, PEOPLE, TOOLGATE_URL, TOOLGATE_TOKEN, CHANNEL } = process.env;
const telegram = async (method, body) => (await post(`${TELEGRAM_URL}/${method}`, body)).result;
const open = new Map();

receive(async (event) => {
  const { permission_id: id, digest, session_id: sessionId, shown = [], complete, url } = event.data;
  const text = [wordsOf(event), ...shown].join("\n");
  const keyboard = [[{ text: "Open", url }]];
  // A message has 4,096 characters, the data of a button 64 bytes.
  const isWhole = complete && text.length <= 4_096;
  if (event.type === "permission.requested" && digest && id.length <= 62) {
    keyboard.push([{ text: "Reject", callback_data: `r:${id}` }]);
    if (isWhole) keyboard[1].push({ text: "Approve once", callback_data: `a:${id}` });
  }
  const message = {
    ...{ chat_id: CHAT, text: text.slice(0, 4_096), reply_markup: { inline_keyboard: keyboard } },
    entities: [{ type: "pre", offset: 0, length: Math.min(text.length, 4_096) }],
  };
  const { message_id } = open.get(id) ?? {};
  if (event.type === "permission.settled" && message_id) {
    await telegram("editMessageText", { ...message, message_id });
    open.delete(id);
  } else open.set(id, { ...(await telegram("sendMessage", message)), digest, sessionId });
});

async function answer(account, pressed) {
  const [, reply, permissionId] = /^([ar]):(.+)$/.exec(pressed) ?? [];
  const onBehalfOf = JSON.parse(PEOPLE)[account];
  if (!onBehalfOf) return "Your account belongs to no person here";
  if (!open.has(permissionId)) return "Open the link";
  const { sessionId, digest: expectedDigest } = open.get(permissionId);
  const name = reply === "a" ? "PERMISSION_REPLY_ONCE" : "PERMISSION_REPLY_REJECT";
  const body = { sessionId, permissionId, expectedDigest, onBehalfOf, channel: CHANNEL, reply: name };
  const headers = { authorization: `Bearer ${TOOLGATE_TOKEN}` };
  const url = `${TOOLGATE_URL}/opencode.tool.v1.PermissionService/RespondToPermission`;
  return await post(url, body, headers).then(
    () => "Done",
    (error) => error.message.slice(0, 200),
  );
}

for (let offset = 0; ; ) {
  const updates = await telegram("getUpdates", { offset, timeout: 50, allowed_updates: ["callback_query"] }).catch(() =>
    delay(1_000, []),
  );
  for (const { update_id, callback_query: query } of updates) {
    offset = update_id + 1;
    const text = await answer(query.from.id, query.data);
    await telegram("answerCallbackQuery", { callback_query_id: query.id, text }).catch(() => undefined);
  }
}
