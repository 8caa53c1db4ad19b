/** Fetches what an issuer sends: no redirects, within 5 s, at most 1 MiB. */
export async function fetchBounded(address: string, options: RequestInit = {}): Promise<Response> {
  const signal = AbortSignal.timeout(timeoutMs);
  const response = await fetch(address, { ...options, redirect: "error", signal });
  const pieces: Uint8Array[] = [];
  let size = 0;
  for await (const piece of response.body ?? []) {
    size += piece.length;
    if (size > maxBytes) throw new Error(`${address} has more than ${maxBytes} bytes`);
    pieces.push(piece);
  }
  const { status, headers } = response;
  return new Response(size === 0 ? null : Buffer.concat(pieces), { status, headers });
}

const timeoutMs = 5_000;
const maxBytes = 1_048_576;
