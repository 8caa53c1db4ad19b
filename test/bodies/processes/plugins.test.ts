import { node } from "./driver.ts";
import { describePlugins } from "./plugin-suite.ts";

describePlugins(node);
