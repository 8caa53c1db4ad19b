/**
 * Returns a signal that is aborted with the first of both, for the reason of that one. `AbortSignal.any` would hold memory for
 * each request as long as `ended` lives, which is the lifetime of a credential; here the request's own signal, which Connect
 * aborts after each request, ends the link.
 */
export function linkedSignal(request: AbortSignal, ended: AbortSignal | undefined): AbortSignal {
  if (ended === undefined) return request;
  const either = new AbortController();
  const end = () => either.abort(ended.reason);
  const unlink = () => {
    ended.removeEventListener("abort", end);
    either.abort(request.reason);
  };
  if (ended.aborted) end();
  else if (request.aborted) either.abort(request.reason);
  else {
    ended.addEventListener("abort", end);
    request.addEventListener("abort", unlink, { once: true });
  }
  return either.signal;
}
