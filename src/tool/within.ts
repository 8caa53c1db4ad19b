/** Limits the time of work, such as an import, so that one that never ends does not hold up others. */
export async function within<T>(ms: number, work: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error(`it was not ready within ${ms / 1_000} s`)), ms);
  });
  return await Promise.race([work, late]).finally(() => clearTimeout(timer));
}
