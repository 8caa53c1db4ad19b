// `npm install nodemailer`. `SMTP_URL` is the submission of your provider, with TLS: `smtps://USER:PASSWORD@HOST` or
// `smtp://USER:PASSWORD@HOST:587?requireTLS=true`. The outcome is a reply to the first mail. A mail has the link
// only: its sender can be forged, and software opens links, so neither an answer nor a press on one-click counts.
import { createTransport } from "nodemailer";
import { receive, wordsOf } from "./receiver.mjs";

const { SMTP_URL, MAIL_FROM: from, MAIL_TO: to } = process.env;
const transport = createTransport(SMTP_URL);

receive(async (event, id) => {
  const first = `<msg_${event.data.permission_id}_opened@toolgate>`;
  await transport.sendMail({
    ...{ from, to, subject: wordsOf(event), messageId: `<${id}@toolgate>` },
    ...(event.type === "permission.settled" && { inReplyTo: first, references: first }),
    // Mail programs make links of addresses: those of an agent are no longer ones.
    text: `${(event.data.display ?? []).join("\n").replaceAll("://", ": //")}\n\n${event.data.url}\n`,
    headers: { "Auto-Submitted": "auto-generated" },
  });
});
