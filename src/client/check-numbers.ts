/** Refuses integers that a double has rounded, or would: the tool would get another number. */
export function checkNumbers(path: string, value: unknown): void {
  const isRounded = Number.isInteger(value) && !Number.isSafeInteger(value) && Math.abs(Number(value)) <= 2 ** 64;
  if (typeof value === "bigint" || isRounded)
    throw new RangeError(
      `${path} is ${value}: an integer beyond 2^53 is rounded, and a bigint is no JSON; pass it as text`,
    );
  if (typeof value !== "object" || value === null) return;
  const isList = Array.isArray(value);
  for (const [name, field] of Object.entries(value))
    checkNumbers(isList ? `${path}[${name}]` : `${path}.${name}`, field);
}
