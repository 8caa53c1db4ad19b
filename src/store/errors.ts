/** A store that cannot be opened; the message names the store, the reason and the next step. */
export class StoreUnusable extends Error {
  override name = "StoreUnusable";
}
