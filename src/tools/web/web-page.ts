import { ToolFailure } from "../../tool/errors.ts";
import { type AddressJudge, bodyOf, exchange, type PageRedirect } from "./exchange.ts";

/** A fetched page. */
export interface WebPage {
  url: URL;
  contentType: string;
  body: Buffer;
}

/** Fetches a web page by the rules of `exchange`, and reads at most 5 MiB after decompression. */
export async function fetchPage(
  approved: URL,
  { judge, accept, signal }: { judge: AddressJudge; accept: string; signal: AbortSignal },
): Promise<WebPage | PageRedirect> {
  const headers = { "user-agent": "Mozilla/5.0 (compatible; toolgate)", accept };
  const found = await exchange(upgraded(approved, judge), approved, { headers, judge, signal });
  if ("redirect" in found) return found;
  const { url, response } = found;
  const { statusCode = 0 } = response;
  if (statusCode < 200 || statusCode >= 300) {
    response.destroy();
    throw new ToolFailure(`Request failed with status code: ${statusCode} (${url.href})`);
  }
  return { url, contentType: response.headers["content-type"] ?? "", body: await bodyOf(response) };
}

/** Upgrades http to https, unless a rule names `http://` or the address has a port. */
function upgraded(url: URL, judge: AddressJudge): URL {
  if (url.protocol !== "http:" || url.port !== "" || /^http:/i.test(judge(url).rule ?? "")) return url;
  const secure = new URL(url);
  secure.protocol = "https:";
  const { action, reason } = judge(secure);
  if (action === "deny") throw new ToolFailure(`${secure.href} is not allowed: ${reason}`);
  return secure;
}
