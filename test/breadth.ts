import { inject } from "vitest";

declare module "vitest" {
  interface ProvidedContext {
    /** False in `npm test`, which runs samples of what `npm run test:breadth` runs whole. */
    isBroad: boolean | undefined;
  }
}

/** False in `npm test`; every other run takes all cases. */
export const isBroad = inject("isBroad") ?? true;

/** All cases, in `npm test` only the sample. */
export function casesOf<Case>(all: readonly Case[], sample: readonly Case[]): readonly Case[] {
  return isBroad ? all : sample;
}

/** Cases that take long, each in one of both suites: in `npm test` the sample, in `npm run test:breadth` the others. */
export function shareOf<Case>(all: readonly Case[], sample: readonly Case[]): readonly Case[] {
  return isBroad ? all.filter((each) => !sample.includes(each)) : sample;
}
