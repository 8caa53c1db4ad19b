// `TEAMS_URL` is the address of a workflow that begins with When a Teams webhook request is received. It is a secret.
// Cards of a workflow cannot call back, so people decide behind the link. Text of agents stands in a `TextRun`, which
// knows no links; a `TextBlock` would.
import { post, receive, wordsOf } from "./receiver.mjs";

receive(async (event) => {
  const { display = [], risks = [], url } = event.data;
  const lines = [wordsOf(event), ...risks.map(({ kind }) => `Risk: ${kind}`), ...display];
  const content = {
    type: "AdaptiveCard",
    version: "1.4",
    body: lines.map((text) => ({ type: "RichTextBlock", inlines: [{ type: "TextRun", text }] })),
    actions: [{ type: "Action.OpenUrl", title: "Open", url }],
  };
  const attachments = [{ contentType: "application/vnd.microsoft.card.adaptive", content }];
  await post(process.env.TEAMS_URL, { type: "message", attachments });
});
