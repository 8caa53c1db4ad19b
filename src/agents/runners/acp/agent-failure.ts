/** The end of a run without an answer: the reason, about the agent, for the calling model and for people. */
export class AgentFailure extends Error {
  override name = "AgentFailure";
}
