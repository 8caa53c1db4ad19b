import type { JSONWebKeySet, JWTVerifyGetKey } from "jose";
import { isSafeAddress } from "../core/safe-address.ts";
import { fetchBounded } from "./bounded-fetch.ts";

/** Keys of an issuer that were fetched. */
interface Fetched {
  keys?: JSONWebKeySet;
  /** Time of the last keys, and of the last attempt, in ms. */
  time: number;
  tried: number;
  trying?: Promise<void> | undefined;
}

/** Creates the keys of issuers: those of a file, or those that the issuer publishes. The last good ones serve for a day. */
export function createIssuerKeys(now: () => number = () => performance.now()) {
  const fetched = new Map<string, Fetched>();
  const finders = new WeakMap<JSONWebKeySet, JWTVerifyGetKey>();
  let loading: Promise<typeof import("jose")> | undefined;

  /** Loads the library with the first token. An import costs 13 µs also of a module that is loaded, and a token has four. */
  function load() {
    loading ??= import("jose").catch((error: unknown) => {
      loading = undefined;
      throw error;
    });
    return loading;
  }

  /** Returns the search for a key, which imports each key once. */
  async function finderOf(keys: JSONWebKeySet): Promise<JWTVerifyGetKey> {
    const { createLocalJWKSet } = await load();
    const finder = finders.get(keys) ?? createLocalJWKSet(keys);
    finders.set(keys, finder);
    return finder;
  }

  /** Fetches the keys of an issuer, at most once a minute; concurrent requests share one attempt. */
  async function refresh(issuer: string, state: Fetched): Promise<void> {
    if (state.trying === undefined && state.tried + pauseMs > now()) return;
    state.trying ??= (async () => {
      state.tried = now();
      try {
        state.keys = await fetchKeys(issuer);
        state.time = now();
      } finally {
        state.trying = undefined;
      }
    })();
    await state.trying;
  }

  async function current(issuer: string, state: Fetched): Promise<JSONWebKeySet> {
    if (state.keys === undefined || state.time + freshMs <= now()) {
      const failure = await refresh(issuer, state).catch((error: unknown) => error);
      if (state.keys === undefined) throw failure ?? new Error(`the keys of ${issuer} cannot be read`);
    }
    if (state.time + maxAgeMs <= now()) throw new Error(`the keys of ${issuer} could not be read for a day`);
    return state.keys;
  }

  return {
    load,
    /** Verifies with the keys of an issuer; if none fits, once again with those that it publishes now. */
    async with<T>(
      { issuer, jwks }: { issuer: string; jwks?: JSONWebKeySet | undefined },
      verify: (find: JWTVerifyGetKey) => Promise<T>,
    ): Promise<T> {
      const { errors } = await load();
      if (jwks !== undefined) return await verify(await finderOf(jwks));
      const state = fetched.get(issuer) ?? { time: 0, tried: Number.NEGATIVE_INFINITY };
      fetched.set(issuer, state);
      const keys = await current(issuer, state);
      try {
        return await verify(await finderOf(keys));
      } catch (error) {
        if (!(error instanceof errors.JWKSNoMatchingKey)) throw error;
        await refresh(issuer, state).catch(() => undefined);
        if (state.keys === undefined || state.keys === keys) throw error;
        return await verify(await finderOf(state.keys));
      }
    },
  };
}

/** Reads the metadata of an issuer (OpenID Connect Discovery), then the keys that it names. */
async function fetchKeys(issuer: string): Promise<JSONWebKeySet> {
  const metadata = await fetchJson(`${issuer.replace(/\/$/, "")}/.well-known/openid-configuration`);
  if (metadata.issuer !== issuer) throw new Error(`the metadata of ${issuer} names the issuer ${metadata.issuer}`);
  const { jwks_uri: address } = metadata;
  const isSafe = typeof address === "string" && URL.canParse(address) && isSafeAddress(address);
  if (!isSafe) throw new Error(`the metadata of ${issuer} names no jwks_uri with https`);
  const { keys } = await fetchJson(address);
  if (!Array.isArray(keys)) throw new Error(`${address} has no keys`);
  return { keys };
}

async function fetchJson(address: string): Promise<Record<string, unknown>> {
  const response = await fetchBounded(address);
  if (!response.ok) throw new Error(`${address} answered ${response.status}`);
  const parsed: unknown = await response.json();
  if (typeof parsed !== "object" || parsed === null) throw new Error(`${address} is no JSON object`);
  return { ...parsed };
}

const pauseMs = 60_000;
const freshMs = 600_000;
const maxAgeMs = 86_400_000;
