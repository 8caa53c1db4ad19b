// Prints the requests for an approval that a chat would show, as the service explains them.

import { generateText, stepCountIs } from "ai";
import { toolgateTools } from "toolgate/ai";

const { tools, explainApproval, close } = await toolgateTools();
const { content } = await generateText({
  ...{ model: "mock", tools, toolApproval: explainApproval, stopWhen: stepCountIs(2), prompt: "Go." },
});
console.log(
  JSON.stringify(
    content.map((part) => ("approvalId" in part ? part.type : part.type === "text" ? part.text : part.type)),
  ),
);
await close();
