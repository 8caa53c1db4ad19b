/** An MCP server for tests that speaks the present version of MCP, over stdio. */
import { acceptedContent, inputRequired, McpServer } from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";
import { z } from "zod";

const wanted = z.object({ name: z.string() });
const text = (value: string) => ({ content: [{ type: "text" as const, text: value }] });

serveStdio(() => {
  const server = new McpServer(
    { name: "modern", version: "1.0.0" },
    { capabilities: { tools: { listChanged: true } } },
  );
  server.registerTool("greet", { description: "Greets", inputSchema: z.object({}) }, async (_, ctx) => {
    const given = acceptedContent(ctx.mcpReq.inputResponses, "who", wanted);
    if (given) return text(`Hello ${given.name}`);
    return inputRequired({
      inputRequests: { who: inputRequired.elicit({ message: "Whom?", requestedSchema: wanted }) },
    });
  });
  server.registerTool("grow", { description: "Adds a tool", inputSchema: z.object({}) }, async () => {
    server.registerTool("grown", { description: "Was added", inputSchema: z.object({}) }, async () => text("more"));
    return text("grown");
  });
  return server;
});
