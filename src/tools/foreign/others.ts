import { ToolFailure } from "../../tool/errors.ts";
import type { Plan } from "../../tool/tool.ts";
import { readUrl, urlProblem } from "../web/exchange.ts";

/** Plans to fetch a page. Redirects are followed by the agent, so rules see the first address only. */
export function planFetch(text: string): Plan {
  const problem = urlProblem(text);
  if (problem !== undefined) throw new ToolFailure(`url ${problem}`);
  const url = readUrl(text);
  return {
    title: url.href,
    asks: [{ permission: "webfetch", patterns: [url.href], metadata: { url: url.href } }],
    inspect: async () => ({ preview: () => ({ hosts: [url.host] }) }),
  };
}

/** Plans something that is judged by one word, such as the name of a skill or of a subagent. */
export function planNamed(permission: string, pattern: string, title = pattern): Plan {
  return { title, asks: [{ permission, patterns: [pattern], metadata: { title } }] };
}
