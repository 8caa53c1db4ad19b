/** Checks for TLS, or for this machine. */
export function isSafeAddress(address: string): boolean {
  const { protocol, hostname } = new URL(address);
  return protocol === "https:" || (protocol === "http:" && /^(127\.0\.0\.1|\[::1\]|localhost)$/.test(hostname));
}
