import { node } from "./driver.ts";
import { describeTools } from "./tool-suite.ts";

describeTools(node);
