import { connectors } from "./connectors.ts";
import { testHook } from "./hook-rows.ts";

testHook("the command hook of Claude Code", connectors["the command hook of Claude Code"]);
