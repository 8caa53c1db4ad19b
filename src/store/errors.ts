/** A store that cannot be opened; the message says which one, why, and what to do. */
export class StoreUnusable extends Error {
  override name = "StoreUnusable";
}
